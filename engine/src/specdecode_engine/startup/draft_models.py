"""Which class reads the checkpoint of a draft, by algorithm."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdecode_api.boot import EngineBoot
from specdecode_api.speculation import DRAFT_IN_TARGET, Algorithm
from specdecode_engine.model.config_file import ConfigFile, DraftMismatch
from specdecode_engine.model.dflash import BlockHead, DFlashHead
from specdecode_engine.model.dflash_config import is_dflash
from specdecode_engine.model.draft_config import DraftConfig, HeadConfig
from specdecode_engine.model.draft_head import DraftHead
from specdecode_engine.model.eagle import Eagle1Head, Eagle3Head
from specdecode_engine.model.implementations import read_config
from specdecode_engine.model.language_model import LanguageModelConfig
from specdecode_engine.model.mtp import MtpHead
from specdecode_engine.model.mtp_config import has_modules, is_export

DRAFT_HEADS: Mapping[Algorithm, type[DraftHead[Any]] | type[BlockHead[Any]]] = {
    Algorithm.EAGLE: Eagle1Head,
    Algorithm.EAGLE3: Eagle3Head,
    Algorithm.MTP: MtpHead,
    Algorithm.DFLASH: DFlashHead,
}
"""Heads over hidden states of the target; a STANDALONE draft is a language model."""


def draft_folder(boot: EngineBoot) -> Path | None:
    """Return where the draft's tensors are; None: the algorithm drafts without a model."""
    speculation = boot.speculation
    if speculation.draft_path is not None:
        return Path(speculation.draft_path)
    # Without a checkpoint of its own the draft is a part of the target's.
    return Path(boot.model.path) if speculation.algorithm in DRAFT_IN_TARGET else None


def read_draft(algorithm: Algorithm, folder: Path, target: LanguageModelConfig) -> DraftConfig:
    """Read a draft's config.json and check it against the target's; its tensors may be absent."""
    if algorithm is not Algorithm.STANDALONE:
        head: HeadConfig = DRAFT_HEADS[algorithm].read_config(folder, target)
        return head
    draft = read_config(folder)
    if draft.vocab_size != target.vocab_size:
        raise DraftMismatch(
            f"draft {folder} has a vocabulary of {draft.vocab_size} tokens, the target of "
            f"{target.vocab_size}; use a draft that was made for this target"
        )
    return draft


def read_checked_draft(boot: EngineBoot, target: LanguageModelConfig) -> DraftConfig | None:
    """Read the draft's config; names and shapes of a head's tensors are checked too."""
    folder = draft_folder(boot)
    if folder is None:
        return None
    algorithm = boot.speculation.algorithm
    draft = read_draft(algorithm, folder, target)
    if isinstance(draft, HeadConfig):
        kind = DRAFT_HEADS[algorithm]
        kind.check(draft, kind.open_tensors(folder), target)
    return draft


def draft_warning(
    folder: Path, target: LanguageModelConfig, draft: DraftConfig | None
) -> str | None:
    """Return why the draft seems to be made for another target than that in `folder`."""
    verifier = draft.verifier if isinstance(draft, HeadConfig) else None
    return None if verifier is None else verifier.warning(folder, target)


def draft_facts(
    boot: EngineBoot, draft: DraftConfig | None, target: LanguageModelConfig
) -> dict[str, object]:
    """Return what a draft's config.json states of its target and its use: for /server_info."""
    steps = draft.proposed_draft_steps if isinstance(draft, HeadConfig) else None
    warning = draft_warning(Path(boot.model.path), target, draft)
    found = {"draft_warning": warning, "proposed_draft_steps": steps}
    facts = draft.facts if isinstance(draft, HeadConfig) else {}
    return facts | {name: value for name, value in found.items() if value is not None}


def algorithm_of(folder: Path) -> Algorithm:
    """Return what a draft's config.json is for; a language model is a STANDALONE draft."""
    file = ConfigFile.open(folder / "config.json")
    if is_dflash(file):
        return Algorithm.DFLASH
    names = file.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if "Eagle3" in name:
        return Algorithm.EAGLE3
    if is_export(file) or has_modules(folder):
        return Algorithm.MTP
    return Algorithm.EAGLE if "Eagle" in name or "EAGLE" in name else Algorithm.STANDALONE
