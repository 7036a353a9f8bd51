"""Records that ops take: paged KV, what each query row attends to, sampling parameters of a batch.

They check themselves when they are made, which is once per engine (`LayerKV`) or once per step.
Letters: B batch.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn
"""Four bits of exponent, three of mantissa, no infinity; entries are multiplied by a scale."""


class CausalBounds(NamedTuple):
    """What the host knows, without waiting, of how far the last query row of each request sees."""

    kv_lens: tuple[int, ...]  # [batch], upper bounds
    # the most query rows of a request whose bound may exceed the length; 0: all bounds are exact
    inexact_rows: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMetadata:
    """Which rows of the KV cache every query row attends to, the same for all layers of a forward.

    Cache row = page id * page size + offset. Query rows are concatenated request by request. Query
    row i sees the first `kv_lens[i]` rows of its own request; seeing none is legal and yields
    zeros. `max_kv_len` is a bound that the host knows, so that no kernel has to ask the device: in
    a CUDA graph it bounds all replays, and the tensors are refilled.
    """

    page_table: Tensor  # [batch, pages] i64, padding entries 0
    page_size: int
    # query rows of each request; where only the device knows them, numbers with the same sum that
    # none of them exceeds
    qo_lens: tuple[int, ...]
    kv_lens: Tensor  # [rows] i64; causal extension: position + 1
    max_kv_len: int
    # [batch + 1] i64, where each request's rows begin; asked for on the device where requests
    # differ in query rows, and copied there by each call that finds none
    cu_seqlens_q: Tensor | None = None
    # where each row sees one row more than the one before it: what the host knows of the lengths
    causal_bounds: CausalBounds | None = None
    qo_lens_on_device: bool = False  # in `cu_seqlens_q`

    @property
    def uniform_qo_len(self) -> int | None:
        """Query rows of every request, if all have the same number; none for an empty batch."""
        return self.qo_lens[0] if len(set(self.qo_lens)) == 1 else None

    def __post_init__(self) -> None:
        if self.page_table.dim() != 2 or self.page_table.dtype != torch.int64:
            raise ValueError(
                f"page_table must be [batch, pages] int64, "
                f"not {list(self.page_table.shape)} {self.page_table.dtype}"
            )
        batch, pages = self.page_table.shape
        if len(self.qo_lens) != batch or min(self.qo_lens, default=0) < 0:
            raise ValueError(
                f"qo_lens {self.qo_lens} must be one number >= 0 for each of the "
                f"{batch} requests in page_table"
            )
        if self.kv_lens.shape != (sum(self.qo_lens),) or self.kv_lens.dtype != torch.int64:
            raise ValueError(
                f"kv_lens must be int64, one for each of the {sum(self.qo_lens)} query rows, "
                f"not {list(self.kv_lens.shape)} {self.kv_lens.dtype}"
            )
        if self.page_size < 1 or not 0 <= self.max_kv_len <= pages * self.page_size:
            raise ValueError(
                f"max_kv_len {self.max_kv_len} must lie within the {pages} pages of "
                f"{self.page_size} rows that page_table holds per request; widen page_table"
            )
        starts = self.cu_seqlens_q
        if starts is not None and (starts.shape != (batch + 1,) or starts.dtype != torch.int64):
            raise ValueError(
                f"cu_seqlens_q must be int64, one for each of the {batch} requests and the end, "
                f"not {list(starts.shape)} {starts.dtype}"
            )
        if self.causal_bounds is not None:
            lens = self.causal_bounds.kv_lens
            if len(lens) != batch or max(lens, default=0) > self.max_kv_len or 0 in self.qo_lens:
                raise ValueError(
                    f"causal_bounds {lens} must be one number up to max_kv_len {self.max_kv_len} "
                    f"for each of {batch} requests, and none of qo_lens {self.qo_lens} may be 0"
                )


class RowSpec(NamedTuple):
    """Which rows of B requests are to be laid out, n of each, one request after the other.

    Row j of request b has the position lengths[b] + start + offsets[j], or `lowest` of the request
    where that is greater. No position is negative; tensors are contiguous.
    """

    pages: Tensor  # [requests, any] i64
    page_size: int
    columns: int  # of the page table
    req_indices: Tensor  # [B] i64
    lengths: Tensor  # [B] i64
    start: int = 0
    offsets: Tensor | None = None  # [n] i64; None: one row of each request, offset 0
    lowest: Tensor | None = None  # [requests] i64


class RowIndices(NamedTuple):
    """Where rows lie that a `RowSpec` describes."""

    req_indices: Tensor  # [B * n] i64
    positions: Tensor  # [B * n] i64
    slot_mapping: Tensor  # [B * n] i64, rows of the KV cache
    kv_lens: Tensor  # [B * n] i64: position + 1
    page_table: Tensor  # [B, columns] i64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionParams:
    """How one layer's scores become weights; the same for every forward of a model.

    weights = softmax(bounded(q . k * scale)), where bounded(x) is x without a softcap. A sink is
    one more logit of each query head that joins the softmax and has no value: it adds exp(sink) to
    the denominator. Make one per layer: backends keep what they derive from it.
    """

    scale: float | None = None
    """Factor of q . k; None: head_dim ** -0.5, of the head size of keys."""

    logit_softcap: float | None = None
    """Bound of a score: softcap * tanh(score / softcap), as in Gemma 2."""

    sliding_window: int | None = None
    """The most keys that a row attends to: the last of those that it sees, its own included.

    The row at position p attends to positions p - sliding_window + 1 to p. Nodes of a tree come
    after the prefix and an ancestor before its descendants, so this holds for them too.
    """

    attention_chunk_size: int | None = None
    """Keys of a chunk; a row attends to those of its own chunk alone, as in Llama 4.

    The row at position p attends to positions p // attention_chunk_size * attention_chunk_size to
    p. The position is the number of keys that a row sees, less one, for nodes of a tree as well.
    """

    sinks: Tensor | None = None  # [q_heads] f32, as in gpt-oss

    def __post_init__(self) -> None:
        for name in ("scale", "logit_softcap"):
            number = getattr(self, name)
            if number is not None and not 0 < number < math.inf:
                raise ValueError(f"attention: {name} {number} must be positive and finite, or None")
        for name in ("sliding_window", "attention_chunk_size"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ValueError(
                    f"attention: {name} {size} must be at least 1, or None to see everything"
                )
        if self.sliding_window is not None and self.attention_chunk_size is not None:
            raise ValueError(
                f"attention: sliding_window {self.sliding_window} and attention_chunk_size "
                f"{self.attention_chunk_size} exclude each other; set one of them to None"
            )
        sinks = self.sinks
        if sinks is not None and (sinks.dim() != 1 or sinks.dtype != torch.float32):
            raise ValueError(
                f"attention: sinks must be [q_heads] float32, not {list(sinks.shape)} {sinks.dtype}"
            )

    @property
    def reach(self) -> int | None:
        """The most keys that a row attends to; None: all that it sees."""
        return self.sliding_window or self.attention_chunk_size

    def scale_of(self, head_dim: int) -> float:
        """Return the factor of the scores of keys of this head size."""
        return head_dim**-0.5 if self.scale is None else self.scale


DEFAULT_ATTENTION = AttentionParams()
"""Scores times head_dim ** -0.5, and nothing else."""


@dataclass(frozen=True, slots=True)
class KvScale:
    """What the entries of float8 pools are multiplied by when read; 1 for every other type."""

    k: float = 1.0
    v: float = 1.0

    def __post_init__(self) -> None:
        if not all(0 < scale < math.inf for scale in (self.k, self.v)):
            raise ValueError(f"scales of keys and values must be positive and finite, not {self}")


UNSCALED = KvScale()


@dataclass(frozen=True, slots=True, eq=False)
class LayerKV:
    """Keys and values of one layer in the KV cache; row = page id * page size + offset.

    Keys and values may have different head sizes. Float8 entries are read times `scale`.

    With multi-head latent attention there is one head of keys and no memory for values: those are
    the first v_dim entries of each key, its latent.
    """

    k: Tensor  # [pool_rows, kv_heads, k_dim]
    v: Tensor  # [pool_rows, kv_heads, v_dim]
    scale: KvScale = UNSCALED
    is_latent: bool = False  # v is a view of k

    def __post_init__(self) -> None:
        k, v = self.k, self.v
        if k.dim() != 3 or v.dim() != 3 or v.shape[:2] != k.shape[:2] or v.dtype != k.dtype:
            raise ValueError(
                f"k {list(k.shape)} {k.dtype} and v {list(v.shape)} {v.dtype} must both be "
                "[pool_rows, kv_heads, dim], of one type and equal but for dim"
            )
        if self.scale != UNSCALED and k.dtype != FLOAT8:
            raise ValueError(f"{self.scale} is for {FLOAT8}; a KV cache of {k.dtype} has none")
        if self.is_latent and (k.shape[1] != 1 or v.stride(0) != k.stride(0)):
            raise ValueError(
                f"latent values {list(v.shape)} must be a view of one head of keys, "
                f"not of {list(k.shape)}"
            )
        if self.is_latent and self.scale.k != self.scale.v:
            raise ValueError(
                f"latent values are entries of keys, but {self.scale} differs between them"
            )


class TreeKV(NamedTuple):
    """KV rows outside the cache that a request attends to as well: draft scratch or a tree's nodes.

    They follow the rows of the cache; of two that a query row sees the earlier has the lower index.
    Query row i of a request sees by row i of its mask; a request may have fewer query rows than the
    mask. Made once per layer and forward, so it does not check itself; `testing.checked` does.
    """

    k: Tensor  # [batch, tree_rows, kv_heads, k_dim]
    v: Tensor  # [batch, tree_rows, kv_heads, v_dim]
    tree_mask: Tensor  # [batch, queries, tree_rows] bool, queries at least those of any request


@dataclass(frozen=True, slots=True, eq=False)
class SamplingParamsBatch:
    """How each request of a batch samples; [B] each, of any stride.

    `is_filtered` and `has_top_k_and_top_p` are what the host knows of the batch as a whole: where
    they are false, no request has a filter, or none both of these, and the work is left out.
    """

    temperature: Tensor  # float, 0 is greedy
    top_k: Tensor  # i64, 0 is off
    top_p: Tensor  # float in (0, 1], 1 is off
    min_p: Tensor  # float in [0, 1], 0 is off
    seeds: Tensor  # i64
    is_filtered: bool
    has_top_k_and_top_p: bool = True

    def tensors(self) -> tuple[Tensor, ...]:
        return self.temperature, self.top_k, self.top_p, self.min_p, self.seeds


@dataclass(frozen=True, slots=True, eq=False)
class PenaltyParamsBatch:
    """Penalties and biases of a batch; the big tables have one row per request that has any."""

    counts: Tensor  # [states, vocab] f32, of output tokens
    in_prompt: Tensor  # [states, vocab] bool
    bias: Tensor  # [states, vocab] f32
    states: Tensor  # [B] i64, row of the tables; -1 leaves a request's logits as they are
    numbers: Tensor  # [B, 3] f64: repetition, presence, frequency


@dataclass(frozen=True, slots=True, eq=False)
class DraftedNodes:
    """The drafted tokens of the nodes after each request's first one."""

    tokens: Tensor  # [B, N - 1] i64
    parents: Tensor | None  # [B, N] i64, the root's is itself; None: node j + 1 hangs on node j
    max_depth: int


def as_rows(x: Tensor) -> Tensor:
    """View [..., dim] as [rows, dim] with unit stride within a row; copied only if it must be."""
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()
