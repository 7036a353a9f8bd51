"""Where checkpoints keep multi-token prediction (MTP) modules, and in which order they join inputs.

Sources: the checkpoints of DeepSeek-V3, GLM-4.5, MiMo-7B, MiMo-V2, Qwen3-Next, Step-3.5 and
Inkling, as SGLang, vLLM and transformers (`MtpModel`) read them; vllm-project/speculators, `mtp`.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from specdecode_engine.model.checkpoint.checkpoint import StorePart, TensorStore

EXTRA_TENSORS = ("enorm.", "hnorm.", "eh_proj.", "shared_head.", "transformer.shared_head.")
"""What a decoder layer of the target has not: a module after the target's layers has it."""

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.*)")
_STEP_HEAD = re.compile(r"model\.layers\.\d+\.transformer\.shared_head\.")
_MIMO_MODULE = re.compile(r"model\.mtp_layers\.(\d+)\.")
_INKLING_MODULE = re.compile(
    r"model\.mtp\.layers\.(\d+)\.(?:embed_norm|hidden_norm|input_proj|transformer_block)\."
)
_MIMO_V2_MODULE = re.compile(r"model\.mtp\.layers\.(\d+)\.")
_SPECULATORS_MODULE = re.compile(r"mtp_layers\.(\d+)\.")
_QWEN_LAYER = re.compile(r"mtp\.layers\.(\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpLayout:
    """Names of the tensors of a module, each with the module's number in place of `{}`.

    Names of norms and maps are without `.weight`; `copies` are of the target's embedding and head.
    A name without `{}` is of a tensor that all modules share.
    """

    name: str
    token_norm: str
    hidden_norm: str
    projection: str
    output_norm: str | None  # None: outputs are not normed
    layer: str
    prefix: str  # of all tensors of all modules, or of one
    copies: tuple[str, ...] = ()
    is_hidden_first: bool = False  # the projection reads [hidden state, embedding]
    zeroes_first_row: bool = False  # the embedding of the row at position 0 is zero

    def at(self, number: int) -> "MtpLayout":
        """Return the names of one module."""

        def named(text: str) -> str:
            return text.format(number)

        return replace(
            self,
            token_norm=named(self.token_norm),
            hidden_norm=named(self.hidden_norm),
            projection=named(self.projection),
            output_norm=self.output_norm and named(self.output_norm),
            layer=named(self.layer),
            prefix=named(self.prefix),
            copies=tuple(map(named, self.copies)),
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
STEP = replace(
    DEEPSEEK,
    name="Step-3.5",
    output_norm="model.layers.{}.transformer.shared_head.norm",
    copies=(
        "model.layers.{}.embed_tokens.weight",
        "model.layers.{}.transformer.shared_head.output.weight",
    ),
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
SPECULATORS = MtpLayout(
    name="speculators",
    token_norm="mtp_layers.{}.token_layernorm",
    hidden_norm="mtp_layers.{}.hidden_layernorm",
    projection="mtp_layers.{}.input_proj",
    output_norm="mtp_layers.{}.final_layernorm",
    layer="mtp_layers.{}",
    prefix="mtp_layers.{}.",
)
MIMO_V2 = MtpLayout(
    name="MiMo-V2",
    token_norm="model.mtp.layers.{}.enorm",
    hidden_norm="model.mtp.layers.{}.hnorm",
    projection="model.mtp.layers.{}.eh_proj",
    output_norm="model.mtp.layers.{}.final_layernorm",
    layer="model.mtp.layers.{}",
    prefix="model.mtp.",
)
INKLING = MtpLayout(
    name="Inkling",
    token_norm="model.mtp.layers.{}.embed_norm",
    hidden_norm="model.mtp.layers.{}.hidden_norm",
    projection="model.mtp.layers.{}.input_proj",
    output_norm="model.mtp.chain_norm",
    layer="model.mtp.layers.{}.transformer_block",
    prefix="model.mtp.",
    is_hidden_first=True,
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
            (INKLING, _numbers(_INKLING_MODULE, names)),
            (MIMO_V2, _numbers(_MIMO_V2_MODULE, names)),
            (QWEN3_NEXT, _numbers(_QWEN_LAYER, names)),
            (SPECULATORS, _numbers(_SPECULATORS_MODULE, names)),
            (STEP if any(map(_STEP_HEAD.match, names)) else DEEPSEEK, _after_layers(names)),
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
