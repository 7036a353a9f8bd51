"""DSpark: DFlash's block, in which each token depends on the drafted one before it.

The rows of a block are computed at once; a Markov head then adds what the token before makes of
the next one, position by position. So a draft token is conditioned on the drafted tokens before it,
in trees too, for one small product per position.

Source: deepseek-ai/DeepSpec, 2026.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from specdecode_engine.model.checkpoint import Shapes
from specdecode_engine.model.config_file import ConfigFile
from specdecode_engine.model.dflash import DFlashHead
from specdecode_engine.model.dflash_config import DFlashConfig
from specdecode_engine.model.dflash_weights import renamed, stored_names
from specdecode_engine.model.dspark_config import DSparkConfig, is_dspark
from specdecode_engine.model.language_model import LanguageModelConfig
from specdecode_engine.model.markov_head import MarkovHead
from specdecode_engine.model.weights import Weights, linear_shapes

CONFIDENCE = "confidence_head.proj"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DSparkHead(DFlashHead):
    """A DFlash head with a Markov head.

    The confidence head estimates for each row whether its token will be accepted. Nothing reads it
    yet: how many tokens are verified is decided on the host, before the draft is computed.
    """

    confidence: tuple[Tensor, ...] = ()  # weight [1, hidden] or [1, hidden + rank], and bias [1]

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
        own = config.markov.shapes(*sizes)
        if config.confidence_inputs:
            own |= linear_shapes(CONFIDENCE, 1, config.confidence_inputs, bias=True)
        return {**required, **renamed(own, stored_names(names))}, optional

    @classmethod
    def _take_own(cls, config: DFlashConfig, weights: Weights) -> dict[str, Any]:
        assert isinstance(config, DSparkConfig)
        names = linear_shapes(CONFIDENCE, 1, config.confidence_inputs, bias=True)
        confidence = tuple(map(weights.take, names)) if config.confidence_inputs else ()
        return {"markov": MarkovHead.take(config.markov, weights), "confidence": confidence}
