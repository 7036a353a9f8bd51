"""The feed-forward block of a mixture of experts: its sizes, its tensors, and what it computes."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from specdecode_engine.model.checkpoint import Shape
from specdecode_engine.model.config_file import ConfigFile
from specdecode_engine.model.experts import Experts
from specdecode_engine.model.layers import Linear
from specdecode_engine.model.routing import RoutingConfig, route
from specdecode_kernels import GatedActivation

DEFAULT_TOP_K = 8
SILU = GatedActivation("silu")


@dataclass(frozen=True, slots=True)
class SparseMlpConfig:
    """Experts of the sparse layers of a Qwen3-MoE; names as in config.json where it has them."""

    num_experts: int
    moe_intermediate_size: int
    routing: RoutingConfig
    sparse_layers: frozenset[int]  # the others have a dense MLP

    @classmethod
    def read(cls, config: ConfigFile, layers: int) -> "SparseMlpConfig":
        """Read the keys of Qwen3-MoE; the defaults are those of transformers."""
        # transformers 5 also writes the count under the name that other families use.
        key = "num_experts" if config.get("num_local_experts") is None else "num_local_experts"
        num_experts = config.integer(key)
        top_k = config.integer("num_experts_per_tok", DEFAULT_TOP_K)
        if top_k > num_experts:
            raise config.error("num_experts_per_tok", f"the layers have {num_experts} experts")
        is_normalized = config.switch("norm_topk_prob", False)
        return cls(
            num_experts=num_experts,
            moe_intermediate_size=config.integer("moe_intermediate_size"),
            routing=RoutingConfig(top_k=top_k, scores="softmax", is_normalized=is_normalized),
            sparse_layers=_sparse_layers(config, layers),
        )

    def shapes(self, prefix: str, hidden_size: int) -> dict[str, Shape]:
        """Name the tensors of one block."""
        inner = self.moe_intermediate_size
        shapes: dict[str, Shape] = {f"{prefix}.gate.weight": (self.num_experts, hidden_size)}
        for gate, up in self.gate_up_names(prefix):
            shapes |= {gate: (inner, hidden_size), up: (inner, hidden_size)}
        return shapes | dict.fromkeys(self.down_names(prefix), (hidden_size, inner))

    def gate_up_names(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yield the names of the gate and of the up projection of each expert."""
        for number in range(self.num_experts):
            expert = f"{prefix}.experts.{number}"
            yield f"{expert}.gate_proj.weight", f"{expert}.up_proj.weight"

    def down_names(self, prefix: str) -> Iterator[str]:
        """Yield the name of the down projection of each expert."""
        for number in range(self.num_experts):
            yield f"{prefix}.experts.{number}.down_proj.weight"


def _sparse_layers(config: ConfigFile, layers: int) -> frozenset[int]:
    """Return every `decoder_sparse_step`-th layer, without those under `mlp_only_layers`."""
    step = config.integer("decoder_sparse_step", 1)
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(number) is int for number in dense):
        raise config.error("mlp_only_layers", "it must be a list of numbers of layers")
    return frozenset(n for n in range(layers) if (n + 1) % step == 0 and n not in dense)


@dataclass(frozen=True, slots=True, eq=False)
class SparseMlp:
    """A router and the experts that it chooses among."""

    router: Linear
    routing: RoutingConfig
    experts: Experts

    def __call__(self, x: Tensor) -> Tensor:
        """Map [rows, hidden] to [rows, hidden]."""
        return self.experts(x, route(self.router(x), self.routing))
