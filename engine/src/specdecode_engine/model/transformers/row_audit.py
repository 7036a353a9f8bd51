"""Proof that no op outside of our own makes a row depend on the others of its batch.

One forward of a network on the meta device runs under a dispatch mode that knows every op that
torch executes: one rule for every device, before weights are read. Ops
that move numbers, or whose result for each number IEEE 754 fixes (sums, products, quotients, square
roots), give a row the same bits in any batch. Sums over a dimension, matrix products, and
functions that a vector loop computes otherwise than its scalar end do not, and are refused.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from specdecode_engine.model.kv.delta_states import DeltaLayers
from specdecode_engine.model.kv.kv_cache import RotaryRows
from specdecode_engine.model.kv.layer_map import LayerMap
from specdecode_engine.model.target.transformers_config import UnsupportedModel
from specdecode_engine.model.transformers.modules import RowModule
from specdecode_kernels.metadata import DEFAULT_ATTENTION, AttentionParams

_MOVES = """
alias as_strided cat clone _to_copy copy_ detach empty empty_like embedding expand fill_ full
full_like gather index index_select lift_fresh masked_fill new_empty new_full new_ones new_zeros
ones ones_like permute repeat _reshape_alias scalar_tensor select slice split split_with_sizes
squeeze stack t transpose unbind unfold unsqueeze _unsafe_view view where zeros zeros_like arange
"""
"""Ops that only move numbers, and such as make constants."""

_EXACT = """
abs add add_ sub sub_ rsub mul mul_ div div_ neg sqrt reciprocal relu clamp clamp_ clamp_min
clamp_max maximum minimum eq ne lt le gt ge logical_and logical_not bitwise_and bitwise_not square
"""
"""Ops on single numbers whose result IEEE 754 fixes."""

ALLOWED = frozenset((_MOVES + _EXACT).split())
"""Overload packets of torch.ops.aten, by name."""


class ProbeDelta:
    """States of recurrent layers that nothing reads or changes."""

    def __init__(self, layers: DeltaLayers) -> None:
        self._layers = layers

    def mix(self, layer: int, u: Tensor, gates: Tensor) -> Tensor:
        shape = self._layers.shape
        assert layer < self._layers.count
        return u.new_zeros(len(u), shape.v_heads, shape.v_dim)


class ProbeView:
    """A KV view without keys and values, which compares each layer with the layer map."""

    def __init__(self, layer_map: LayerMap, delta: DeltaLayers | None = None) -> None:
        self.delta = None if delta is None else ProbeDelta(delta)
        self._layers = layer_map.layers
        self._keys: dict[int, int] = {}  # address of the keys of each layer

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        params: AttentionParams = DEFAULT_ATTENTION,
        rotary: RotaryRows | None = None,
    ) -> Tensor:
        spec = self._layers[layer]
        self._keys[layer] = k.data_ptr()
        found = (*k.shape[1:], v.shape[2], params.sliding_window, params.attention_chunk_size)
        wanted = (
            *(spec.kv_heads, spec.k_head_dim, spec.v_head_dim),
            *(spec.sliding_window, spec.attention_chunk_size),
        )
        if found != wanted or self._keys.get(spec.kv_owner) != k.data_ptr():
            raise UnsupportedModel(
                f"layer {layer} attends with (kv heads, head sizes, window, chunk) {found} "
                f"where config.json describes {wanted} of layer {spec.kv_owner}; this model type "
                "is not supported"
            )
        return q.new_zeros(*q.shape[:2], v.shape[2])


class RowAudit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the ops that are not allowed, each with the path of the module that called it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.refused: dict[str, str] = {}  # op: module path
        self._paths: list[str] = []
        self._trusted = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        if not self._trusted and not is_row_independent(name, args, kwargs or {}):
            self.refused.setdefault(name, self._paths[-1] if self._paths else "")
        return func(*args, **(kwargs or {}))

    @contextmanager
    def watching(self, network: nn.Module) -> Iterator[None]:
        """Follow which module computes, and audit what it computes."""
        handles = []
        for path, module in network.named_modules():
            handles.append(module.register_forward_pre_hook(self._enter(path)))
            handles.append(module.register_forward_hook(self._leave, always_call=True))
        try:
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, path: str) -> Any:
        def hook(module: nn.Module, _: Any) -> None:
            self._paths.append(path)
            self._trusted += isinstance(module, RowModule)

        return hook

    def _leave(self, module: nn.Module, *_: Any) -> None:
        self._paths.pop()
        self._trusted -= isinstance(module, RowModule)

    def check(self, model_type: str) -> None:
        """Raise if any op was refused."""
        if self.refused:
            places = sorted(self.refused.items())
            found = ", ".join(f"{op} in {path or 'the model itself'}" for op, path in places)
            raise UnsupportedModel(
                f"model type {model_type} computes rows that depend on their batch: {found}; "
                "speculation would change its text, so it is not served"
            )


def is_row_independent(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether every number of an op's result has the same bits in any batch."""
    if name in ("pow", "pow_"):
        return len(args) == 2 and args[1] == 2  # a product of two numbers
    # With another factor than one, vector loops fuse product and sum.
    return name in ALLOWED and kwargs.get("alpha", 1) == 1
