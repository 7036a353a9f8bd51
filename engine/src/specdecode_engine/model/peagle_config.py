"""The config.json of a P-EAGLE head: EAGLE-3's keys, and the token of positions without one.

Source: vllm-project/speculators, `PEagleSpeculatorConfig`; vLLM for the names of other writers.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from specdecode_engine.model.config_file import ConfigFile
from specdecode_engine.model.eagle_config import (
    EAGLE3_ARCHITECTURES,
    MASK_TOKEN_KEYS,
    PARALLEL_ARCHITECTURES,
    Eagle3Config,
    HeadForm,
)
from specdecode_engine.model.speculators import proposed_draft_steps

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
        token, vocab = config.integer(key, least=0), config.integer("vocab_size")
        if token >= vocab:
            raise config.mismatch(key, f"the target's vocabulary has {vocab} tokens")
        stated = proposed_draft_steps(config) or config.integer("para_num", DEFAULT_TOKENS)
        return {"mask_token_id": token, "draft_tokens": stated}
