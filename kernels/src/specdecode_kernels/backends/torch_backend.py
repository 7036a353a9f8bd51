"""Plain torch: the truth, and the path on CPU."""

from torch import Tensor

from specdecode_kernels import reference
from specdecode_kernels.backends.backend import Capturing
from specdecode_kernels.layout import AttentionLayout, KvScale, Tail


class TorchBackend:
    """Run the references. Any device and type; holds nothing."""

    name = "torch"
    capturing = Capturing(True, "torch would gather page tables at full width in every replay")

    def store_kv(
        self, k_pool: Tensor, v_pool: Tensor, rows: Tensor, k: Tensor, v: Tensor, scale: KvScale
    ) -> None:
        """Write new rows into the pools, in place."""
        reference.store_kv(k_pool, v_pool, rows, k, v, scale)

    def attend(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        layout: AttentionLayout,
        tail: Tail | None,
        scale: KvScale,
    ) -> Tensor:
        """Gather the pages, attend."""
        return reference.attend(q, k_pool, v_pool, layout, tail, scale)

    def attend_with_lse(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        layout: AttentionLayout,
        tail: Tail | None,
        scale: KvScale,
    ) -> tuple[Tensor, Tensor]:
        """Gather the pages, attend, and compute the scores once more."""
        return reference.attend_with_lse(q, k_pool, v_pool, layout, tail, scale)

    def merge_states(
        self, out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Merge in float32."""
        return reference.merge_states(out_a, lse_a, out_b, lse_b)


TORCH = TorchBackend()
"""The one instance: it has no state."""
