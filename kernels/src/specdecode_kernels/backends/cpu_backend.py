"""Attention on a CPU by torch's blocked softmax, in float32, equal to the bit between batch shapes.

The reference sums in float64 so that the order of a sum does not show. Here the order is kept the
same instead: torch goes through keys in blocks of 512 and query rows in blocks of 32 or more, and
within a block its products add in an order that follows from the block's size. So query rows are
filled up to a multiple of 4 and keys to one of a few lengths (decision 15). `attend_probe.py` tries
that on the machine before this backend is chosen.

What a layout says of rows and masks is worked out once for all layers of a pass.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_kernels.backends.torch_backend import TorchBackend
from specdecode_kernels.layout import AttentionLayout, KvScale, Tail
from specdecode_kernels.reference.attention import Run, equal_runs

QUERY_BLOCK = 4
SHORT_KEYS = (64, 128)
KEY_BLOCK = 512
MOST_KEPT = 1 << 24
"""Entries of the largest buffer that is kept for the next call: 64 MiB."""


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Consecutive requests with equally many query rows, and what they see."""

    run: Run
    length: int  # keys of each request, filled up
    places: Tensor  # [batch * length] i64, pool rows; what nobody sees repeats a row that is seen
    bias: Tensor  # [batch, 1, folded rows, length] f32: 0 or -inf
    blind: Tensor | None  # [rows] bool: sees nothing; None if every row sees something
    empty: Tensor | None  # [batch] bool: requests of which nothing is seen


class CpuBackend(TorchBackend):
    """Attention of one pool; what nobody is in a hurry for on a CPU is left to the references."""

    name = "cpu"

    def __init__(self) -> None:
        self._planned: tuple[AttentionLayout, int, tuple[_Part, ...]] | None = None
        self._kept = [torch.empty(0), torch.empty(0)]

    def attend(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        layout: AttentionLayout,
        tail: Tail | None,
        scale: KvScale,
    ) -> Tensor:
        """Gather the rows that are seen, attend run by run."""
        if not layout.max_visible or k_pool.dtype != q.dtype:
            return super().attend(q, k_pool, v_pool, layout, tail, scale)
        if tail is not None and tail.is_exact and q.dtype == torch.float32:
            return self._attend_as_chains(q, k_pool, v_pool, layout, tail)
        parts = self._plan(layout, q.shape[1] // k_pool.shape[1])
        mixed = [self._attend(part, q[part.run.rows], k_pool, v_pool, tail) for part in parts]
        return mixed[0] if len(mixed) == 1 else torch.cat([q[:0], *mixed])

    def _attend_as_chains(
        self, q: Tensor, k_pool: Tensor, v_pool: Tensor, layout: AttentionLayout, tail: Tail
    ) -> Tensor:
        """Give every row its own keys in the order in which a chain would have them in the pool.

        Anywhere else among the keys they would be added in another order.
        """
        (part,) = self._plan(layout, q.shape[1] // k_pool.shape[1])
        chains = _chains(part, layout, tail.mask)
        k = torch.cat((self._gather(part, 0, k_pool), tail.k), dim=1).flatten(0, 1)
        v = torch.cat((self._gather(part, 1, v_pool), tail.v), dim=1).flatten(0, 1)
        at_once = max(1, MOST_KEPT // (chains.places.shape[1] * k[0].numel()))
        mixed = [
            _attend_alone(q[rows], k, v, chains.only(rows))
            for rows in (slice(at, at + at_once) for at in range(0, len(q), at_once))
        ]
        return torch.cat(mixed)

    def _plan(self, layout: AttentionLayout, shared: int) -> tuple[_Part, ...]:
        """Work out the parts; every layer of a pass brings the same layout."""
        known = self._planned
        if known is None or known[0] is not layout or known[1] != shared:
            parts = tuple(_part(run, layout, shared) for run in equal_runs(layout.query_lens))
            known = self._planned = (layout, shared, parts)
        return known[2]

    def _attend(
        self, part: _Part, q: Tensor, k_pool: Tensor, v_pool: Tensor, tail: Tail | None
    ) -> Tensor:
        """Attend from q [rows of the part, q_heads, dim]; same shape and type."""
        k, v = self._gather(part, 0, k_pool), self._gather(part, 1, v_pool)
        bias, blind = part.bias, part.blind
        shared = q.shape[1] // k.shape[2]
        if tail is not None:
            hidden = ~tail.mask.any(dim=1)[:, :, None, None]  # may hold NaN too
            k = torch.cat((k, tail.k.float().masked_fill(hidden, 0.0)), dim=1)
            v = torch.cat((v, tail.v.float().masked_fill(hidden, 0.0)), dim=1)
            bias = torch.cat((bias, _bias(tail.mask, shared)), dim=3)
            blind = None if blind is None else blind & ~tail.mask.any(dim=2).flatten()
        folded = _fold(q.float(), part.run, k.shape[2])
        mixed, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
            folded, k.transpose(1, 2), v.transpose(1, 2), 0.0, False, attn_mask=bias
        )
        out = _unfold(mixed, part.run, q.shape).to(q.dtype)
        return out if blind is None else out.masked_fill(blind[:, None, None], 0.0)

    def _gather(self, part: _Part, number: int, pool: Tensor) -> Tensor:
        """Copy what is seen of a pool: [batch, length, kv_heads, dim] f32."""
        rows = pool.flatten(1)
        shape = (part.run.batch, part.length, *pool.shape[1:])
        if pool.dtype == torch.float32:
            gathered = torch.index_select(rows, 0, part.places, out=self._room(number, part, rows))
        else:
            gathered = torch.index_select(rows, 0, part.places).float()
        gathered = gathered.view(shape)
        if part.empty is not None:  # what nobody wrote may be NaN, which no mask hides
            gathered[part.empty] = 0.0
        return gathered

    def _room(self, number: int, part: _Part, rows: Tensor) -> Tensor:
        """Hand out memory that was used before: the first touch of new pages costs more than a
        copy.
        """
        count, width = len(part.places), rows.shape[1]
        if count * width > MOST_KEPT:
            return rows.new_empty(count, width)
        if self._kept[number].numel() < count * width:
            self._kept[number] = rows.new_empty(count * width)
        return self._kept[number][: count * width].view(count, width)


@dataclass(frozen=True, slots=True, eq=False)
class _Chains:
    """The keys of every query row, as if each were a request of its own."""

    places: Tensor  # [rows, length] i64, among the gathered keys of all requests and their tails
    counts: Tensor  # [rows] i64, how many of them are seen

    def only(self, rows: slice) -> "_Chains":
        """Those of some rows."""
        return _Chains(self.places[rows], self.counts[rows])


def _chains(part: _Part, layout: AttentionLayout, mask: Tensor) -> _Chains:
    """Put what a row's mask shows behind the rows of the pool that it sees."""
    batch, queries, tail_rows = mask.shape
    visible = layout.visible.view(batch, queries, 1)
    shown = mask.sum(dim=2, keepdim=True)
    counts = visible + shown  # [batch, queries, 1]
    keys = torch.arange(filled_up(int(counts.max()))).expand(batch, queries, -1)
    in_order = torch.sort((~mask).to(torch.int8), dim=2, stable=True).indices
    nth = torch.minimum(keys - visible, shown - 1).clamp(min=0)
    own = part.length + in_order.gather(2, nth)
    # What a row does not see repeats its last key that it does.
    pooled = torch.minimum(keys, (visible - 1).clamp(min=0))
    in_pool = (keys < visible) | (shown == 0)
    first = torch.arange(batch)[:, None, None] * (part.length + tail_rows)
    places = first + torch.where(in_pool, pooled, own)
    return _Chains(places.flatten(0, 1), counts.flatten())


def _attend_alone(q: Tensor, k: Tensor, v: Tensor, chains: _Chains) -> Tensor:
    """Attend from rows [n, q_heads, dim] to keys and values [any, kv_heads, dim], each to its own.

    Rows that see nothing yield zeros.
    """
    rows, length = chains.places.shape
    run = Run(slice(0, rows), slice(0, rows), rows, 1)
    shape = (rows, length, *k.shape[1:])
    keys, values = (
        x.index_select(0, chains.places.flatten()).view(shape).transpose(1, 2) for x in (k, v)
    )
    shown = torch.arange(length) < chains.counts[:, None, None]
    mixed, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
        _fold(q, run, k.shape[1]),
        keys,
        values,
        0.0,
        False,
        attn_mask=_bias(shown, q.shape[1] // k.shape[1]),
    )
    out = _unfold(mixed, run, q.shape)
    return out.masked_fill((chains.counts == 0)[:, None, None], 0.0)


def filled_up(length: int) -> int:
    """Round a number of keys up to one that sums in the same order as every longer one."""
    for short in SHORT_KEYS:
        if length <= short:
            return short
    return -(-length // KEY_BLOCK) * KEY_BLOCK


def _part(run: Run, layout: AttentionLayout, shared: int) -> _Part:
    visible = layout.visible[run.rows].view(run.batch, run.queries)
    seen = visible.amax(dim=1, keepdim=True)  # [batch, 1]
    length = filled_up(int(seen.max()))
    keys = torch.arange(length)
    # Rows that nobody sees may hold NaN, which a mask does not hide: others take their place.
    positions = torch.minimum(keys, (seen - 1).clamp(min=0))
    pages = layout.page_table[run.requests].gather(1, positions // layout.page_size)
    places = pages * layout.page_size + positions % layout.page_size
    blind = (visible == 0).flatten()
    is_blind, is_empty = bool(blind.any()), bool((seen == 0).any())
    return _Part(
        run,
        length,
        places.flatten(),
        _bias(keys < visible[:, :, None], shared),
        blind if is_blind else None,
        (seen == 0)[:, 0] if is_empty else None,
    )


def _bias(shown: Tensor, shared: int) -> Tensor:
    """Turn [batch, queries, keys] bool into what is added to scores; see `_fold` for the rows."""
    bias = torch.zeros(shown.shape).masked_fill_(~shown, -torch.inf)
    if shared > 1:
        bias = bias.repeat_interleave(shared, dim=1)
    missing = -bias.shape[1] % QUERY_BLOCK
    if missing:
        bias = torch.cat((bias, bias[:, :1].expand(-1, missing, -1)), dim=1)
    return bias[:, None]


def _fold(q: Tensor, run: Run, kv_heads: int) -> Tensor:
    """Lay [rows, q_heads, dim] out as [batch, kv_heads, folded rows, dim].

    Heads that share keys are rows of one product. The rows are filled up by the first one.
    """
    batch, queries, dim = run.batch, run.queries, q.shape[2]
    shared = q.shape[1] // kv_heads
    folded = q.reshape(batch, queries, kv_heads, shared, dim).transpose(2, 3)
    rows = folded.reshape(batch, queries * shared, kv_heads, dim)
    missing = -rows.shape[1] % QUERY_BLOCK
    if missing:
        rows = torch.cat((rows, rows[:, :1].expand(-1, missing, -1, -1)), dim=1)
    return rows.transpose(1, 2)


def _unfold(mixed: Tensor, run: Run, shape: torch.Size) -> Tensor:
    """Undo `_fold`: [rows, q_heads, dim]."""
    kv_heads, shared = mixed.shape[1], shape[1] // mixed.shape[1]
    rows = mixed.transpose(1, 2)[:, : run.queries * shared]
    folded = rows.reshape(run.batch, run.queries, shared, kv_heads, shape[2])
    return folded.transpose(2, 3).reshape(shape)
