"""Where checkpoints keep multi-token prediction (MTP) modules, and in which order they join inputs.

Sources: the checkpoints of DeepSeek-V3, GLM-4.5, MiMo-7B and Qwen3-Next, as SGLang, vLLM and
transformers (`MtpModel`) read them.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from specdecode_engine.model.checkpoint import TensorStore
from specdecode_engine.model.store_part import StorePart

EXTRA_TENSORS = ("enorm.", "hnorm.", "eh_proj.", "shared_head.")
"""What a decoder layer of the target has not: a module after the target's layers has it."""

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.*)")
_MIMO_MODULE = re.compile(r"model\.mtp_layers\.(\d+)\.")
_QWEN_LAYER = re.compile(r"mtp\.layers\.(\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpLayout:
    """Names of the tensors of a module, each with the module's number in place of `{}`.

    Names of norms and maps are without `.weight`; `copies` are of the target's embedding and head.
    """

    name: str
    token_norm: str
    hidden_norm: str
    projection: str
    output_norm: str
    layer: str
    prefix: str  # of all tensors of all modules, or of one
    copies: tuple[str, ...] = ()
    is_hidden_first: bool = False  # the projection reads [hidden state, embedding]
    zeroes_first_row: bool = False  # the embedding of the row at position 0 is zero

    def at(self, number: int) -> "MtpLayout":
        """Return the names of one module."""

        def named(text: str) -> str:
            return text.format(number)

        return MtpLayout(
            name=self.name,
            token_norm=named(self.token_norm),
            hidden_norm=named(self.hidden_norm),
            projection=named(self.projection),
            output_norm=named(self.output_norm),
            layer=named(self.layer),
            prefix=named(self.prefix),
            copies=tuple(map(named, self.copies)),
            is_hidden_first=self.is_hidden_first,
            zeroes_first_row=self.zeroes_first_row,
        )


DEEPSEEK = MtpLayout(
    name="DeepSeek-V3",
    token_norm="model.layers.{}.enorm",
    hidden_norm="model.layers.{}.hnorm",
    projection="model.layers.{}.eh_proj",
    output_norm="model.layers.{}.shared_head.norm",
    layer="model.layers.{}",
    prefix="model.layers.{}.",
    copies=("model.layers.{}.embed_tokens.weight", "model.layers.{}.shared_head.head.weight"),
)
MIMO = MtpLayout(
    name="MiMo",
    token_norm="model.mtp_layers.{}.token_layernorm",
    hidden_norm="model.mtp_layers.{}.hidden_layernorm",
    projection="model.mtp_layers.{}.input_proj",
    output_norm="model.mtp_layers.{}.final_layernorm",
    layer="model.mtp_layers.{}",
    prefix="model.mtp_layers.{}.",
    is_hidden_first=True,
    zeroes_first_row=True,
)
QWEN3_NEXT = MtpLayout(
    name="Qwen3-Next",
    token_norm="mtp.pre_fc_norm_embedding",
    hidden_norm="mtp.pre_fc_norm_hidden",
    projection="mtp.fc",
    output_norm="mtp.norm",
    layer="mtp.layers.{}",
    prefix="mtp.",
)


@dataclass(frozen=True, slots=True)
class MtpModules:
    """The modules of one checkpoint, by the numbers in the names of their tensors."""

    layout: MtpLayout
    numbers: tuple[int, ...]  # ascending

    @classmethod
    def find(cls, names: Collection[str]) -> "MtpModules | None":
        """Look for the tensors of modules; None where there are none."""
        for layout, numbers in (
            (MIMO, _numbers(_MIMO_MODULE, names)),
            (QWEN3_NEXT, _numbers(_QWEN_LAYER, names)),
            (DEEPSEEK, _after_layers(names)),
        ):
            if numbers:
                return cls(layout, numbers)
        if any(name.startswith(QWEN3_NEXT.prefix) for name in names):
            return cls(QWEN3_NEXT, (0,))
        return None

    def names(self, stored: Collection[str]) -> frozenset[str]:
        """Return which of the stored tensors belong to a module."""
        prefixes = tuple(self.layout.at(number).prefix for number in self.numbers)
        return frozenset(name for name in stored if name.startswith(prefixes))


def without_modules(store: TensorStore) -> TensorStore:
    """Return the tensors of a target, without those of its MTP modules."""
    modules = MtpModules.find(store.tensors)
    if modules is None:
        return store
    return StorePart.of(store, store.tensors.keys() - modules.names(store.tensors))


def _numbers(pattern: re.Pattern[str], names: Collection[str]) -> tuple[int, ...]:
    matches = (pattern.match(name) for name in names)
    return tuple(sorted({int(match[1]) for match in matches if match is not None}))


def _after_layers(names: Collection[str]) -> tuple[int, ...]:
    matches = (_LAYER.match(name) for name in names)
    found = (match for match in matches if match is not None)
    return tuple(sorted({int(m[1]) for m in found if m[2].startswith(EXTRA_TENSORS)}))
