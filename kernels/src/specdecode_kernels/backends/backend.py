"""What every implementation of the ops on cached keys and values offers."""

from typing import NamedTuple, Protocol

from torch import Tensor

from specdecode_kernels.layout import AttentionLayout, KvScale, Tail


class Capturing(NamedTuple):
    """Whether a CUDA graph may hold a backend's launches, and what speaks against it if anything.

    A graph that holds them must be right for every length: they read lengths on the device.
    """

    is_possible: bool
    drawback: str | None = None


class AttentionBackend(Protocol):
    """One implementation of the pool's ops; arguments come checked, as `ops` documents them."""

    @property
    def name(self) -> str:
        """The word that chooses it, in flags, logs and metrics."""
        ...

    @property
    def capturing(self) -> Capturing:
        """Say whether captured passes may use it, and whether that pays."""
        ...

    def store_kv(
        self, k_pool: Tensor, v_pool: Tensor, rows: Tensor, k: Tensor, v: Tensor, scale: KvScale
    ) -> None:
        """Write new rows into the pools, in place."""
        ...

    def attend(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        layout: AttentionLayout,
        tail: Tail | None,
        scale: KvScale,
    ) -> Tensor:
        """Attend to the pools and the tail."""
        ...

    def attend_with_lse(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        layout: AttentionLayout,
        tail: Tail | None,
        scale: KvScale,
    ) -> tuple[Tensor, Tensor]:
        """Attend, and answer the log-sum-exp of each row's scores too."""
        ...

    def merge_states(
        self, out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Merge two attentions of the same queries over different rows."""
        ...
