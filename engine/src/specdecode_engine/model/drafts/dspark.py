"""DSpark: DFlash's block, in which each token depends on the drafted one before it.

The rows of a block are computed at once; a Markov head then adds what the token before makes of
the next one, position by position. So a draft token is conditioned on the drafted tokens before it,
in trees too, for one small product per position. A confidence head estimates how far the target
will accept a block; it orders what is verified where a step verifies a part of its chains.

DeepSpec drafts a token with every row of a block, the bonus token's included. Speculators calls
that `sample_from_anchor`; without it, as in some conversions (`dspark_bonus_anchor`), rows draft as
DFlash's do.

Sources: deepseek-ai/DeepSpec, 2026, `Qwen3DSparkModel`; vllm-project/speculators, `dspark`; SGLang
for the places of keys.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from specdecode_engine.model.checkpoint.checkpoint import Shapes
from specdecode_engine.model.checkpoint.config_file import ConfigFile
from specdecode_engine.model.drafts.confidence_head import ConfidenceHead
from specdecode_engine.model.drafts.dflash import DFlashHead
from specdecode_engine.model.drafts.dflash_config import (
    DFLASH_ARCHITECTURES,
    BlockForm,
    DFlashConfig,
    markov_rank,
)
from specdecode_engine.model.drafts.dflash_weights import renamed, stored_names
from specdecode_engine.model.drafts.markov_head import MarkovConfig, MarkovHead, MarkovKind
from specdecode_engine.model.target.language_model import LanguageModelConfig
from specdecode_engine.model.target.weights import Weights

DSPARK_ARCHITECTURES = (
    "Qwen3DSparkModel",
    "DSparkDraftModel",
    "DSparkSpeculator",
    "Lfm2DSparkDraftModel",
    *DFLASH_ARCHITECTURES,
)
"""Some writers keep DFlash's name; the rank of a Markov head distinguishes the two then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DSparkConfig(DFlashConfig):
    """A DFlash draft whose tokens depend on the drafted tokens before them."""

    form: ClassVar = BlockForm("DSpark", DSPARK_ARCHITECTURES, "dspark")

    markov: MarkovConfig | None  # None: of rank 0, the draft is DFlash's
    confidence_inputs: int  # values that the confidence head reads of a row; 0: there is no head

    @property
    def recurrent_width(self) -> int:
        has_state = self.markov is not None and self.markov.kind is not MarkovKind.VANILLA
        return self.decoder.hidden_size if has_state or self.confidence_inputs else 0

    @property
    def facts(self) -> dict[str, object]:
        found: Any = super(DSparkConfig, self).facts["block_draft"]
        heads = {
            "markov_head": "none" if self.markov is None else str(self.markov.kind),
            "markov_rank": 0 if self.markov is None else self.markov.rank,
            "confidence_head": "used with verify_tokens" if self.confidence_inputs else "none",
        }
        return {"block_draft": {**found, **heads}}

    @classmethod
    def _first_row(cls, config: ConfigFile) -> int:
        is_shifted = config.switch("dspark_bonus_anchor", False)
        return 0 if config.switch("sample_from_anchor", not is_shifted) else 1

    @classmethod
    def _read_own(cls, config: ConfigFile) -> dict[str, Any]:
        rank = config.integer("markov_rank", least=0 if _is_named_dspark(config) else 1)
        kind = config.get("markov_head_type") or MarkovKind.VANILLA
        if kind not in list(MarkovKind):
            raise config.error("markov_head_type", f"supported: {', '.join(MarkovKind)}")
        inputs = 0
        if config.switch("enable_confidence_head", False):
            is_with_markov = config.switch("confidence_head_with_markov", True)
            if is_with_markov and not rank:
                remedy = "confidence_head_with_markov must be false without a Markov head"
                raise config.error("markov_rank", remedy)
            inputs = config.integer("hidden_size") + (rank if is_with_markov else 0)
        markov = MarkovConfig(MarkovKind(str(kind)), rank) if rank else None
        return {"markov": markov, "confidence_inputs": inputs}


def is_dspark(config: ConfigFile) -> bool:
    """Whether config.json is that of a DSpark draft."""
    return config.architecture in DSPARK_ARCHITECTURES and bool(
        markov_rank(config) or _is_named_dspark(config)
    )


def _is_named_dspark(config: ConfigFile) -> bool:
    return "DSpark" in config.architecture


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DSparkHead(DFlashHead):
    """A DFlash head with a Markov head, and mostly with a confidence head."""

    @classmethod
    def recognizes(cls, config: ConfigFile) -> bool:
        return is_dspark(config)

    @classmethod
    def read_config(cls, folder: Path, target: LanguageModelConfig) -> DSparkConfig:
        return DSparkConfig.load(folder, target)

    @classmethod
    def shapes(
        cls, config: DFlashConfig, names: Collection[str], target: LanguageModelConfig
    ) -> tuple[Shapes, Shapes]:
        assert isinstance(config, DSparkConfig)
        required, optional = super(DSparkHead, cls).shapes(config, names, target)
        sizes = config.decoder.hidden_size, config.vocab_size, config.draft_vocab_size
        own = {} if config.markov is None else config.markov.shapes(*sizes)
        if config.confidence_inputs:
            own |= ConfidenceHead.shapes(config.confidence_inputs)
        return {**required, **renamed(own, stored_names(names))}, optional

    @classmethod
    def _take_own(cls, config: DFlashConfig, weights: Weights) -> dict[str, Any]:
        assert isinstance(config, DSparkConfig)
        inputs = config.confidence_inputs
        confidence = ConfidenceHead.take(inputs, weights) if inputs else None
        markov = None if config.markov is None else MarkovHead.take(config.markov, weights)
        return {"markov": markov, "confidence": confidence}
