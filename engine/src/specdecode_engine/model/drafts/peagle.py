"""P-EAGLE: an EAGLE-3 head that drafts all tokens in one forward.

After the last pair of a hidden state and a token, rows of a mask token and a learned hidden state
follow, one for each further draft token. A row sees those before it, and predicts the next token.

Source: vllm-project/speculators, `PEagleDraftModel` and `PEagleSpeculatorConfig`; vLLM for the keys
of other writers.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from specdecode_engine.model.checkpoint.checkpoint import Shapes, TensorStore
from specdecode_engine.model.checkpoint.config_file import ConfigFile
from specdecode_engine.model.drafts.draft_config import read_mask_token
from specdecode_engine.model.drafts.eagle import Eagle3Head
from specdecode_engine.model.drafts.eagle_config import (
    EAGLE3_ARCHITECTURES,
    MASK_TOKEN_KEYS,
    PARALLEL_ARCHITECTURES,
    Eagle3Config,
    HeadForm,
    is_parallel,
)
from specdecode_engine.model.drafts.eagle_weights import check_width
from specdecode_engine.model.drafts.speculators import proposed_draft_steps
from specdecode_engine.model.target.language_model import LanguageModelConfig
from specdecode_engine.model.target.weights import Weights

MASK_HIDDEN = "mask_hidden"

DEFAULT_TOKENS = 8
"""What speculators trains for, unless config.json states another number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PEagleConfig(Eagle3Config):
    """An EAGLE-3 head that drafts all tokens in one forward."""

    form: ClassVar = HeadForm(
        "a P-EAGLE head", (*PARALLEL_ARCHITECTURES, *EAGLE3_ARCHITECTURES), "peagle"
    )

    mask_token_id: int
    draft_tokens: int  # that it was trained to draft at once

    @property
    def max_steps(self) -> int:
        return self.draft_tokens

    @property
    def recurrent_width(self) -> int:
        return 0

    @property
    def facts(self) -> dict[str, object]:
        block = {"draft_tokens": self.draft_tokens, "mask_token_id": self.mask_token_id}
        return {"block_draft": block}

    @classmethod
    def _read_own(cls, config: ConfigFile) -> dict[str, Any]:
        keys = ("mask_token_id", *MASK_TOKEN_KEYS)
        key = next((key for key in keys if config.get(key) is not None), keys[0])
        token = read_mask_token(config, key, config.integer("vocab_size"))
        stated = proposed_draft_steps(config) or config.integer("para_num", DEFAULT_TOKENS)
        return {"mask_token_id": token, "draft_tokens": stated}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PEagleHead(Eagle3Head):
    """An EAGLE-3 head with what stands for hidden states that are not known yet."""

    mask_hidden: Tensor  # [1, width]: aux hidden states

    @property
    def mask_token_id(self) -> int:
        assert isinstance(self.config, PEagleConfig)
        return self.config.mask_token_id

    @classmethod
    def recognizes(cls, config: ConfigFile) -> bool:
        return is_parallel(config)

    @classmethod
    def read_config(cls, folder: Path, target: LanguageModelConfig) -> PEagleConfig:
        return PEagleConfig.load(folder, target)

    @classmethod
    def shapes(
        cls, config: Eagle3Config, names: Collection[str], target: LanguageModelConfig
    ) -> tuple[Shapes, Shapes]:
        required, optional = super(PEagleHead, cls).shapes(config, names, target)
        width = config.aux_spec.width(target.decoder.hidden_size)
        return {**required, MASK_HIDDEN: (1, 1, width)}, optional

    @classmethod
    def check(
        cls, config: Eagle3Config, checkpoint: TensorStore, target: LanguageModelConfig
    ) -> None:
        check_width(config, checkpoint, target)
        required, optional = cls.shapes(config, checkpoint.tensors, target)
        stored = checkpoint.tensors.get(MASK_HIDDEN)
        if stored is not None and len(stored.shape) == 2:  # as some writers have it
            required[MASK_HIDDEN] = required[MASK_HIDDEN][1:]
        checkpoint.check(required, optional)

    @classmethod
    def _take_own(cls, config: Eagle3Config, weights: Weights) -> dict[str, Any]:
        return {MASK_HIDDEN: weights.take(MASK_HIDDEN).view(1, -1)}
