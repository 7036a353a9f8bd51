"""The feed-forward block of a mixture of experts: its sizes, its tensors, and what it computes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor

from specdecode_engine.model.checkpoint.checkpoint import Shape
from specdecode_engine.model.checkpoint.config_file import ConfigFile
from specdecode_engine.model.layers.experts import Experts
from specdecode_engine.model.layers.layers import Linear
from specdecode_kernels import GatedActivation, RoutingConfig
from specdecode_kernels.torch.by_row import by_row

DEFAULT_TOP_K = 8
SILU = GatedActivation("silu")
GPT_OSS_GATE = GatedActivation("swigluoai")
GPT_OSS_TOP_K = 4


class ExpertTensors(Enum):
    """How a checkpoint stores a router and its experts."""

    SEPARATE = "separate"  # one linear map for each projection of each expert, as Qwen3-MoE
    # all experts in one tensor, [experts, inputs, outputs] with gates and ups alternating, and
    # biases of everything, as gpt-oss
    STACKED = "stacked"
    # as SEPARATE, with a correction of the scores and an expert that every row uses, as
    # DeepSeek-V3 and GLM-4.5
    SHARED = "shared"
    GATED_SHARED = "gated_shared"  # as SEPARATE, with a gated expert for every row, as Qwen3-Next


@dataclass(frozen=True, slots=True)
class SharedExpertConfig:
    """An expert that every row uses, next to those that a router chooses."""

    name: str  # below the block's prefix
    intermediate_size: int
    is_gated: bool  # a sigmoid of one linear map scales what it adds


@dataclass(frozen=True, slots=True)
class SparseMlpConfig:
    """Experts of the sparse layers of a mixture; names as in config.json where it has them."""

    num_experts: int
    moe_intermediate_size: int
    routing: RoutingConfig
    sparse_layers: frozenset[int]  # the others have a dense MLP
    activation: GatedActivation = SILU
    tensors: ExpertTensors = ExpertTensors.SEPARATE
    has_correction_bias: bool = False  # added to scores for the choice of experts alone
    shared_expert: SharedExpertConfig | None = None
    # all experts in one tensor, [experts, outputs, inputs] with all gates before all ups
    is_fused: bool = False

    @classmethod
    def read(cls, config: ConfigFile, layers: int, tensors: ExpertTensors) -> "SparseMlpConfig":
        """Read the keys of the family that stores its experts so.

        The defaults are those of transformers.
        """
        return _READERS[tensors](config, layers)

    def shapes(self, prefix: str, hidden_size: int) -> dict[str, Shape]:
        """Name the tensors of one block."""
        experts, inner = self.num_experts, self.moe_intermediate_size
        shapes: dict[str, Shape] = {self.router_name(prefix) + ".weight": (experts, hidden_size)}
        if self.tensors is ExpertTensors.STACKED:
            return shapes | {
                self.router_name(prefix) + ".bias": (experts,),
                f"{prefix}.experts.gate_up_proj": (experts, hidden_size, 2 * inner),
                f"{prefix}.experts.gate_up_proj_bias": (experts, 2 * inner),
                f"{prefix}.experts.down_proj": (experts, inner, hidden_size),
                f"{prefix}.experts.down_proj_bias": (experts, hidden_size),
            }
        if self.is_fused:
            shapes |= {
                f"{prefix}.experts.gate_up_proj": (experts, 2 * inner, hidden_size),
                f"{prefix}.experts.down_proj": (experts, hidden_size, inner),
            }
        else:
            for gate, up in self.gate_up_names(prefix):
                shapes |= {gate: (inner, hidden_size), up: (inner, hidden_size)}
            shapes |= dict.fromkeys(self.down_names(prefix), (hidden_size, inner))
        if self.has_correction_bias:
            shapes[self.correction_name(prefix)] = (experts,)
        return shapes | self._shared_expert_shapes(prefix, hidden_size)

    def _shared_expert_shapes(self, prefix: str, hidden_size: int) -> dict[str, Shape]:
        shared = self.shared_expert
        if shared is None:
            return {}
        expert, inner = f"{prefix}.{shared.name}", shared.intermediate_size
        gate: dict[str, Shape] = {f"{prefix}.{shared.name}_gate.weight": (1, hidden_size)}
        return {
            f"{expert}.gate_proj.weight": (inner, hidden_size),
            f"{expert}.up_proj.weight": (inner, hidden_size),
            f"{expert}.down_proj.weight": (hidden_size, inner),
            **(gate if shared.is_gated else {}),
        }

    def correction_name(self, prefix: str) -> str:
        """Name the correction of the router's scores."""
        return f"{self.router_name(prefix)}.e_score_correction_bias"

    def router_name(self, prefix: str) -> str:
        """Name the router's map, without `.weight`."""
        is_stacked = self.tensors is ExpertTensors.STACKED
        return f"{prefix}.{'router' if is_stacked else 'gate'}"

    def gate_up_names(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yield the names of the gate and of the up projection of each separate expert."""
        for number in range(self.num_experts):
            expert = f"{prefix}.experts.{number}"
            yield f"{expert}.gate_proj.weight", f"{expert}.up_proj.weight"

    def down_names(self, prefix: str) -> Iterator[str]:
        """Yield the name of the down projection of each separate expert."""
        for number in range(self.num_experts):
            yield f"{prefix}.experts.{number}.down_proj.weight"


def _read_qwen3_moe(config: ConfigFile, layers: int) -> SparseMlpConfig:
    # transformers 5 also writes the count under the name that other families use.
    key = "num_experts" if config.get("num_local_experts") is None else "num_local_experts"
    num_experts = config.integer(key)
    return SparseMlpConfig(
        num_experts=num_experts,
        moe_intermediate_size=config.integer("moe_intermediate_size"),
        routing=RoutingConfig(
            top_k=_top_k(config, num_experts, DEFAULT_TOP_K),
            scores="softmax",
            is_normalized=config.switch("norm_topk_prob", False),
        ),
        sparse_layers=_sparse_layers(config, layers),
    )


def _read_gpt_oss(config: ConfigFile, layers: int) -> SparseMlpConfig:
    num_experts = config.integer("num_local_experts")
    alpha = config.real("swiglu_alpha", GPT_OSS_GATE.alpha)
    limit = config.real("swiglu_limit", GPT_OSS_GATE.limit)
    return SparseMlpConfig(
        num_experts=num_experts,
        moe_intermediate_size=config.integer("intermediate_size"),
        routing=RoutingConfig(
            top_k=_top_k(config, num_experts, GPT_OSS_TOP_K), scores="softmax_of_top_k"
        ),
        sparse_layers=frozenset(range(layers)),
        activation=GatedActivation(GPT_OSS_GATE.kind, alpha, limit),
        tensors=ExpertTensors.STACKED,
    )


def _read_deepseek(config: ConfigFile, layers: int) -> SparseMlpConfig:
    num_experts = config.integer("n_routed_experts")
    inner = config.integer("moe_intermediate_size")
    num_groups = config.integer("n_group", 1)
    if num_experts % num_groups:
        raise config.error("n_group", f"it must divide n_routed_experts {num_experts}")
    num_shared = config.integer("n_shared_experts", 1, least=0)
    return SparseMlpConfig(
        num_experts=num_experts,
        moe_intermediate_size=inner,
        routing=RoutingConfig(
            top_k=_top_k(config, num_experts, DEFAULT_TOP_K),
            scores="sigmoid",
            is_normalized=config.switch("norm_topk_prob", True),
            scale=config.real("routed_scaling_factor", 1.0),
            num_groups=num_groups,
            top_groups=config.integer("topk_group", 1),
        ),
        sparse_layers=frozenset(range(config.integer("first_k_dense_replace", 1, least=0), layers)),
        tensors=ExpertTensors.SHARED,
        has_correction_bias=True,
        shared_expert=SharedExpertConfig("shared_experts", inner * num_shared, is_gated=False)
        if num_shared
        else None,
    )


def _read_qwen3_next(config: ConfigFile, layers: int) -> SparseMlpConfig:
    keys = {"num_experts_per_tok": 10, "norm_topk_prob": True, **config.keys}
    read = _read_qwen3_moe(ConfigFile(config.file, keys, config.prefix), layers)
    inner = config.integer("shared_expert_intermediate_size", 512)
    shared = SharedExpertConfig("shared_expert", inner, is_gated=True)
    return replace(read, tensors=ExpertTensors.GATED_SHARED, shared_expert=shared)


_READERS: Mapping[ExpertTensors, Callable[[ConfigFile, int], SparseMlpConfig]] = {
    ExpertTensors.SEPARATE: _read_qwen3_moe,
    ExpertTensors.STACKED: _read_gpt_oss,
    ExpertTensors.SHARED: _read_deepseek,
    ExpertTensors.GATED_SHARED: _read_qwen3_next,
}


def _top_k(config: ConfigFile, num_experts: int, default: int) -> int:
    top_k = config.integer("num_experts_per_tok", default)
    if top_k > num_experts:
        raise config.error("num_experts_per_tok", f"the layers have {num_experts} experts")
    return top_k


def _sparse_layers(config: ConfigFile, layers: int) -> frozenset[int]:
    """Return every `decoder_sparse_step`-th layer, without those under `mlp_only_layers`."""
    step = config.integer("decoder_sparse_step", 1)
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(number) is int for number in dense):
        raise config.error("mlp_only_layers", "it must be a list of numbers of layers")
    return frozenset(n for n in range(layers) if (n + 1) % step == 0 and n not in dense)


@dataclass(frozen=True, slots=True, eq=False)
class SharedExpert:
    """An expert that every row uses."""

    mlp: Callable[[Tensor], Tensor]
    gate: Linear | None

    def __call__(self, x: Tensor) -> Tensor:
        """Map [rows, hidden] to [rows, hidden]."""
        added = self.mlp(x)
        return added if self.gate is None else by_row(torch.sigmoid, self.gate(x)) * added


@dataclass(frozen=True, slots=True, eq=False)
class SparseMlp:
    """A router and the experts that it chooses among."""

    router: Linear
    routing: RoutingConfig
    experts: Experts
    correction_bias: Tensor | None = None  # [experts] f32
    shared_expert: SharedExpert | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Map [rows, hidden] to [rows, hidden]."""
        ops, logits = self.experts.ops, self.router(x)
        routing = ops.route_experts(logits, self.routing, self.correction_bias)
        mixed = self.experts(x, routing)
        return mixed if self.shared_expert is None else mixed + self.shared_expert(x)
