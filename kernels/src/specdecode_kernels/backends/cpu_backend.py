"""Attention on a CPU by our kernels in C; what they do not take is left to the references."""

from torch import Tensor

from specdecode_kernels.backends.torch_backend import TorchBackend
from specdecode_kernels.layout import AttentionLayout, KvScale, Tail
from specdecode_kernels.native import attention, pool


class CpuBackend(TorchBackend):
    """Attention of one pool, with the layout of the pass that is under way."""

    name = "cpu"

    def __init__(self) -> None:
        self._layout: AttentionLayout | None = None
        self._handed: attention.Handed | None = None

    def store_kv(
        self, k_pool: Tensor, v_pool: Tensor, rows: Tensor, k: Tensor, v: Tensor, scale: KvScale
    ) -> None:
        """Copy row by row."""
        if _fit(k_pool, v_pool, k) and v.dtype == k.dtype:
            pool.store_kv(k_pool, v_pool, rows, k, v)
        else:
            super().store_kv(k_pool, v_pool, rows, k, v, scale)

    def attend(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        layout: AttentionLayout,
        tail: Tail | None,
        scale: KvScale,
    ) -> Tensor:
        """Attend row by row; a row's bits depend on the keys that it sees and their order alone."""
        handed = self._hand_over(layout)
        if handed is None or not _fit(k_pool, v_pool, q):
            return super().attend(q, k_pool, v_pool, layout, tail, scale)
        return attention.attend(q, k_pool, v_pool, handed, tail)

    def _hand_over(self, layout: AttentionLayout) -> attention.Handed | None:
        """Say a layout in C's form; every layer of a pass brings the same one."""
        if self._layout is not layout:
            self._layout, self._handed = layout, attention.hand_over(layout)
        return self._handed


def _fit(k_pool: Tensor, v_pool: Tensor, rows: Tensor) -> bool:
    """Whether C can take pools for rows of that type."""
    return k_pool.dtype == rows.dtype and k_pool.is_contiguous() and v_pool.is_contiguous()
