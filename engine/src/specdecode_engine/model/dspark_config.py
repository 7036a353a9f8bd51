"""The config.json of a DSpark draft: DFlash's keys, and those of its two further heads.

DeepSpec drafts a token with every row of a block, the bonus token's included. Speculators calls
that `sample_from_anchor`; without it, as in some conversions (`dspark_bonus_anchor`), rows draft as
DFlash's do.

Sources: deepseek-ai/DeepSpec, `Qwen3DSparkModel`; vllm-project/speculators, `dspark`; SGLang's
`dspark_config` for the places of keys.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from specdecode_engine.model.config_file import ConfigFile
from specdecode_engine.model.dflash_config import (
    DFLASH_ARCHITECTURES,
    BlockForm,
    DFlashConfig,
    markov_rank,
)
from specdecode_engine.model.markov_head import MarkovConfig, MarkovKind

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

    markov: MarkovConfig
    confidence_inputs: int  # values that the confidence head reads of a row; 0: there is no head

    @property
    def recurrent_width(self) -> int:
        return 0 if self.markov.kind is MarkovKind.VANILLA else self.decoder.hidden_size

    @property
    def facts(self) -> dict[str, object]:
        found: Any = super(DSparkConfig, self).facts["block_draft"]
        heads = {
            "markov_head": str(self.markov.kind),
            "markov_rank": self.markov.rank,
            "confidence_head": "loaded, not used" if self.confidence_inputs else "none",
        }
        return {"block_draft": {**found, **heads}}

    @classmethod
    def _first_row(cls, config: ConfigFile) -> int:
        is_shifted = config.switch("dspark_bonus_anchor", False)
        return 0 if config.switch("sample_from_anchor", not is_shifted) else 1

    @classmethod
    def _read_own(cls, config: ConfigFile) -> dict[str, Any]:
        rank = config.integer("markov_rank")
        kind = config.get("markov_head_type") or MarkovKind.VANILLA
        if kind not in list(MarkovKind):
            raise config.error("markov_head_type", f"supported: {', '.join(MarkovKind)}")
        inputs = 0
        if config.switch("enable_confidence_head", False):
            is_with_markov = config.switch("confidence_head_with_markov", True)
            inputs = config.integer("hidden_size") + (rank if is_with_markov else 0)
        markov = MarkovConfig(MarkovKind(str(kind)), rank)
        return {"markov": markov, "confidence_inputs": inputs}


def is_dspark(config: ConfigFile) -> bool:
    """Whether config.json is that of a DSpark draft."""
    return config.architecture in DSPARK_ARCHITECTURES and bool(
        markov_rank(config) or "DSpark" in config.architecture
    )
