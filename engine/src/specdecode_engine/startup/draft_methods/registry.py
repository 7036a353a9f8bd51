"""The method of every algorithm, and the drafts that they read."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import torch

from specdecode_api.boot import EngineBoot
from specdecode_api.speculation import Algorithm
from specdecode_engine.model.checkpoint.config_file import CheckpointError, DraftMismatch
from specdecode_engine.model.drafts.dflash import DFlashHead
from specdecode_engine.model.drafts.draft_config import DraftConfig, HeadConfig
from specdecode_engine.model.drafts.dspark import DSparkHead
from specdecode_engine.model.drafts.eagle import Eagle1Head, Eagle3Head
from specdecode_engine.model.drafts.mtp import MtpHead
from specdecode_engine.model.drafts.peagle import PEagleHead
from specdecode_engine.model.drafts.speculators import open_draft
from specdecode_engine.model.implementations import read_opened_config
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.target.language_model import LanguageModel, LanguageModelConfig
from specdecode_engine.process.start_progress import ShowProgress
from specdecode_engine.startup.draft_methods.blocks import InBlocks
from specdecode_engine.startup.draft_methods.chain import InChain
from specdecode_engine.startup.draft_methods.frozen import OverTargetKv
from specdecode_engine.startup.draft_methods.method import DraftMethod, FromText, LoadedDraft
from specdecode_engine.startup.draft_methods.parallel import AtOnce
from specdecode_engine.startup.draft_methods.token_by_token import TokenByToken
from specdecode_kernels import AnyWeight

METHODS: Mapping[Algorithm, DraftMethod] = {
    Algorithm.NONE: DraftMethod(),
    Algorithm.STANDALONE: TokenByToken(),
    Algorithm.EAGLE: TokenByToken(Eagle1Head),
    Algorithm.EAGLE3: TokenByToken(Eagle3Head),
    Algorithm.PEAGLE: AtOnce(PEagleHead),
    Algorithm.DFLASH: InBlocks(DFlashHead),
    Algorithm.DSPARK: InBlocks(DSparkHead),
    Algorithm.MTP: TokenByToken(MtpHead),
    Algorithm.MTP_CHAIN: InChain(),
    Algorithm.FROZEN_KV_MTP: OverTargetKv(),
    Algorithm.NGRAM: FromText(),
}

LoadModel = Callable[[Path, LanguageModelConfig], LanguageModel]


def draft_folder(boot: EngineBoot) -> Path | None:
    """Return where the draft's tensors are; None: the algorithm drafts without a model."""
    speculation = boot.speculation
    if speculation.draft_path is not None:
        return Path(speculation.draft_path)
    # Without a checkpoint of its own the draft is a part of the target's.
    return Path(boot.model.path) if speculation.algorithm.may_draft_with_target else None


def read_draft(algorithm: Algorithm, folder: Path, target: LanguageModelConfig) -> DraftConfig:
    """Read a draft's config.json and check it against the target's; its tensors may be absent."""
    try:
        return _read_draft(algorithm, folder, target)
    except CheckpointError as error:
        if (other := head_algorithm(folder)) in (algorithm, None):
            raise
        kind = DraftMismatch if isinstance(error, DraftMismatch) else CheckpointError
        fault = f"{error}. The draft is of algorithm {other}; set speculation.algorithm to it"
        raise kind(fault) from error


def _read_draft(algorithm: Algorithm, folder: Path, target: LanguageModelConfig) -> DraftConfig:
    head = METHODS[algorithm].head
    if head is not None:
        config: DraftConfig = head.read_config(folder, target)
        return config
    draft = read_opened_config(open_draft(folder))
    if draft.delta_layers is not None:
        raise CheckpointError(
            f"draft {folder} has recurrent layers, which only a "
            "target may have; use a draft without them, or the MTP module of the target"
        )
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
    draft, head = read_draft(algorithm, folder, target), METHODS[algorithm].head
    if head is not None:
        head.check(draft, head.open_tensors(folder), target)
    return draft


def load_draft(
    boot: EngineBoot,
    draft: DraftConfig | None,
    target: LanguageModel,
    load_model: LoadModel,
    linears: Linears,
    *,
    progress: ShowProgress | None = None,
    device: torch.device | None = None,
    must_share: Collection[AnyWeight] = (),
) -> LoadedDraft | None:
    """Load the draft of a boot file; None: the algorithm drafts without a model.

    Args:
        load_model: loads a language model.
        linears: makes the linear maps of heads.
        device: of a head; by default the target's.
        must_share: weights of the target that a head has to share.
    """
    folder, head = draft_folder(boot), METHODS[boot.speculation.algorithm].head
    if folder is None or draft is None:
        return None
    if head is not None:
        return head.load(
            folder,
            target,
            config=draft,
            progress=progress,
            linears=linears,
            device=device,
            must_share=must_share,
        )
    assert not isinstance(draft, HeadConfig)
    return load_model(folder, draft)


def draft_warning(
    folder: Path, target: LanguageModelConfig, draft: DraftConfig | None
) -> str | None:
    """Return why the draft seems to be made for another target than that in `folder`."""
    verifier = None if draft is None else draft.verifier
    return None if verifier is None else verifier.warning(folder, target)


def draft_facts(
    boot: EngineBoot, draft: DraftConfig | None, target: LanguageModelConfig
) -> dict[str, object]:
    """Return what a draft's config.json states of its target and its use: for /server_info."""
    if draft is None:
        return {}
    warning = draft_warning(Path(boot.model.path), target, draft)
    found = {"draft_warning": warning, "proposed_draft_steps": draft.proposed_draft_steps}
    return {**draft.facts, **{name: value for name, value in found.items() if value is not None}}


def algorithm_of(folder: Path) -> Algorithm:
    """Return what a draft's config.json is for; a language model is a STANDALONE draft."""
    config = open_draft(folder)
    heads = {algorithm: method.head for algorithm, method in METHODS.items()}
    named = (each for each, head in heads.items() if head is not None and head.recognizes(config))
    return next(named, Algorithm.STANDALONE)


def head_algorithm(folder: Path) -> Algorithm | None:
    """Return what a checkpoint that is only a draft is for, if it is one and can be read."""
    try:
        algorithm = algorithm_of(folder)
    except CheckpointError:
        return None
    return algorithm if algorithm.needs_draft and METHODS[algorithm].head is not None else None
