"""Counts the calls of a backend's ops: tests prove by it which implementation computed."""

from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from specdecode_kernels.backend import TORCH, Backend

ATTENTION_OPS = (
    *("store_kv", "rope_and_store_kv", "load_kv"),
    *("attend", "attend_with_lse", "merge_states"),
)
NO_OPS = (
    *("name", "attention", "graph_support", "sum_order"),
    *("pack_weight", "pack_low_rank", "row_paths", "fuse_layer"),
)
OPS = tuple(field.name for field in fields(Backend) if field.name not in NO_OPS)


class LaunchCounter:
    """Wraps backends and counts their calls together, by op and implementation.

    The replay of a CUDA graph calls nothing and is not counted.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def wrap(self, backend: Backend) -> Backend:
        """Make every op of a backend count its calls; none of them is fused with others then."""
        counted: dict[str, Any] = {op: self._counted(op, backend) for op in OPS}
        return replace(backend, fuse_layer=None, **counted)

    def called(self, implementation: str) -> set[str]:
        return {op for op, by in self.counts if by == implementation}

    def _counted(self, op: str, backend: Backend) -> Callable[..., Any]:
        function = getattr(backend, op)
        key = (op, implementation_of(op, backend))

        def call(*arguments: Any) -> Any:
            self.counts[key] += 1
            return function(*arguments)

        return call


def implementation_of(op: str, backend: Backend) -> str:
    """Name what computes an op of an unwrapped backend: torch where it has nothing of its own."""
    if getattr(backend, op) is getattr(TORCH, op):
        return "torch"
    return backend.attention if op in ATTENTION_OPS else backend.name
