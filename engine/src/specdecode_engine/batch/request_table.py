"""The running sequences as device tensors: tokens, lengths and page tables, one row per request.

Steps read and write these tensors only; the host's `Sequence` is updated afterwards. Slot 0 and
page 0 belong to padding. Letters: B batch, n rows per sequence, T rows in all.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from specdecode_engine.batch.staging import StagingBuffer
from specdecode_kernels import TORCH, AttentionMetadata, Backend, CausalBounds, RowSpec

Span = tuple[int, int, int]
"""A request index, and positions [start, end) of its sequence."""


class Rows(NamedTuple):
    """Rows of one forward: their requests and positions, and where their KV is written."""

    req_indices: Tensor  # [T] i64
    positions: Tensor  # [T] i64
    slot_mapping: Tensor  # [T] i64, rows of the pool
    layout: AttentionMetadata


@dataclass(frozen=True, slots=True)
class StagedSpans:
    """Spans that are to be laid out, with what the device has to know of them."""

    spans: tuple[Span, ...]
    req_indices: Tensor  # [spans] i64
    cu_seqlens: Tensor  # [spans + 1] i64, where the rows of each span begin, and their end


class DecodeBatch(NamedTuple):
    """The sequences of one decode step.

    `lengths` counts the tokens whose target KV is present; the bonus token is at that position.
    `host_lengths` bounds the lengths on the host, so that nothing waits for the device; they are
    exact while no step is in flight.
    """

    host_req_indices: tuple[int, ...]
    host_lengths: tuple[int, ...]
    req_indices: Tensor  # [B] i64
    lengths: Tensor  # [B] i64
    is_planned: bool = True  # False: any batch of this size, as in a CUDA graph

    @property
    def size(self) -> int:
        """Sequences in the batch."""
        return len(self.host_req_indices)

    def only(self, row: int) -> "DecodeBatch":
        """The batch of one of its sequences."""
        one = slice(row, row + 1)
        host = self.host_req_indices[one], self.host_lengths[one]
        return DecodeBatch(*host, self.req_indices[one], self.lengths[one], self.is_planned)

    @property
    def longest(self) -> int:
        """The greatest of the lengths."""
        return max(self.host_lengths)


class RequestTable:
    """Tokens, lengths and pages of every running request.

    What the host contributes goes through `staging`: it is put there first, sent with all the other
    numbers of the step, and used from then on.

    Args:
        ops: lays out rows.
        paged: pages whose window pages are kept, 0 without layers that have any.
    """

    def __init__(
        self,
        num_rows: int,
        width: int,
        pages_per_request: int,
        page_size: int,
        staging: StagingBuffer,
        ops: Backend = TORCH,
        paged: int = 0,
    ) -> None:
        self.staging = staging
        self._ops = ops
        self.device = device = staging.device
        self.page_size = page_size
        self.num_rows = num_rows
        self._tokens = torch.zeros(num_rows, width, dtype=torch.int64, device=device)
        self._lengths = torch.zeros(num_rows, dtype=torch.int64, device=device)
        # Page ids, 0 where a request has none; others only read them.
        self.pages = torch.zeros(num_rows, pages_per_request, dtype=torch.int64, device=device)
        self._written_pages = [0] * num_rows
        # Window page of every page, 0 where it has none; others only read them.
        self.window_pages = torch.zeros(paged, dtype=torch.int64, device=device)
        self._offsets = torch.arange(width, device=device)

    def offsets(self, count: int) -> Tensor:
        """Return 0 .. count - 1, at most as many as a sequence has tokens."""
        return self._offsets[:count]

    def open(self, req_index: int, tokens: Items[int]) -> None:
        """Start a sequence: its tokens are known, none has KV yet."""
        staged, row = self.staging.put(tokens), self._tokens[req_index, : len(tokens)]
        self.staging.after_send(lambda: row.copy_(staged))
        self.set_computed(req_index, 0)
        self._written_pages[req_index] = 0

    def write_pages(self, held: Iterable[tuple[int, Items[int]]]) -> None:
        """Write the pages of requests, of which only the last can be new, in one copy."""
        req_indices: list[int] = []
        places: list[int] = []
        new: list[int] = []
        for req_index, pages in held:
            written, count = self._written_pages[req_index], len(pages)
            if count > written:
                req_indices += [req_index] * (count - written)
                places += range(written, count)
                new += pages[written:]
                self._written_pages[req_index] = count
        if new:
            rows = self.staging.put((*req_indices, *places, *new)).view(3, -1)
            self.staging.after_send(lambda: self.pages.index_put_((rows[0], rows[1]), rows[2]))

    def write_window_pages(self, changes: Mapping[int, int]) -> None:
        """Write the window pages of pages where they changed, in one copy."""
        if changes:
            rows = self.staging.put((*changes, *changes.values())).view(2, -1)
            self.staging.after_send(lambda: self.window_pages.index_put_((rows[0],), rows[1]))

    def decode_batch(
        self,
        host_req_indices: Items[int],
        host_lengths: Items[int],
        req_indices: Tensor,
        *,
        is_planned: bool = True,
    ) -> DecodeBatch:
        """Gather the state that a decode step starts from.

        Args:
            req_indices: the first argument, staged and sent.
            is_planned: see `DecodeBatch`.
        """
        host = tuple(host_req_indices), tuple(host_lengths)
        return DecodeBatch(*host, req_indices, self._lengths[req_indices], is_planned)

    def next_positions(self, batch: DecodeBatch, count: int) -> Tensor:
        """Return the `count` positions after each bonus token, [B, count] i64."""
        return batch.lengths[:, None] + self._offsets[1 : count + 1]

    def tokens_at(self, req_indices: Tensor, positions: Tensor) -> Tensor:
        """Return the tokens at `positions` of `req_indices`, elementwise."""
        return self._tokens[req_indices, positions]

    def append(self, batch: DecodeBatch, tokens: Tensor, accepted: Tensor) -> None:
        """Commit a step.

        Args:
            tokens: [B, n] i64, written after the bonus; those past the first accepted + 1 are
                ignored and overwritten by the next step.
            accepted: [B] i64; accepted + 1 more rows of KV are now present.
        """
        places = batch.req_indices, batch.lengths, self._offsets[1 : tokens.shape[1] + 1]
        self._ops.append_tokens(self._tokens, self._lengths, *places, tokens, accepted)

    def set_computed(self, req_index: int, computed: int) -> None:
        """Record that the first `computed` tokens have KV, after an extend step."""
        self._lengths[req_index : req_index + 1].fill_(computed)

    def put_tokens(self, req_indices: Tensor, positions: Tensor, tokens: Tensor) -> None:
        """Write tokens that no `append` has written: first and drafted ones; [rows] i64 each."""
        self._tokens[req_indices, positions] = tokens

    def stage_spans(self, spans: Items[Span]) -> StagedSpans:
        """Stage what `span_rows` needs of at least one span."""
        lens = [end - start for _, start, end in spans]
        req_indices = self.staging.put([req_index for req_index, _, _ in spans])
        return StagedSpans(tuple(spans), req_indices, self.staging.put([0, *accumulate(lens)]))

    def span_rows(self, staged: StagedSpans) -> Rows:
        """Lay out the rows of several spans, one after the other; a row sees all before it."""
        spans, starts = staged.spans, staged.cu_seqlens
        lens = tuple(end - start for _, start, end in spans)
        positions = torch.cat(
            [torch.arange(start, end, device=self.device) for _, start, end in spans]
        )
        row_req_indices = staged.req_indices.repeat_interleave(
            starts.diff(), output_size=len(positions)
        )
        bounds = CausalBounds(tuple([end for _, _, end in spans]))
        longest = max(bounds.kv_lens)
        page_table = self._page_table(staged.req_indices, longest)
        layout = self._layout(page_table, lens, positions + 1, longest, starts, bounds)
        return Rows(row_req_indices, positions, self.pool_rows(row_req_indices, positions), layout)

    def window_rows(
        self, batch: DecodeBatch, start: int, count: int, lowest: Tensor | None = None
    ) -> Rows:
        """Lay out `count` consecutive positions of each sequence, from its length + `start` on.

        Positions below `lowest` [requests] i64 of their sequence become that one, which is then
        computed more than once, to the same values: what lies before may be shared and is not
        written.
        """
        longest, bounds = batch.longest + count, None
        if lowest is None and batch.is_planned:
            ends = tuple(length + start + count for length in batch.host_lengths)
            bounds = CausalBounds(ends, count)
        table, requests = (self.pages, self.page_size), (batch.req_indices, batch.lengths)
        offsets = None if count == 1 else self.offsets(count)
        spec = RowSpec(*table, self._columns(longest), *requests, start, offsets, lowest)
        found, lens = self._ops.lay_out_rows(spec), (count,) * batch.size
        layout = self._layout(found.page_table, lens, found.kv_lens, longest, bounds=bounds)
        return Rows(found.req_indices, found.positions, found.slot_mapping, layout)

    def node_rows(self, batch: DecodeBatch, depths: Tensor) -> Rows:
        """Lay out the nodes of a tree: node j at position length + depth, in pool row length + j.

        Every node sees the rows before its length; what it sees of the tree is not in the layout.

        Args:
            depths: [B, N] i64.
        """
        nodes = depths.shape[1]
        places = batch.lengths[:, None] + self.offsets(nodes)
        row_req_indices = batch.req_indices.repeat_interleave(nodes)
        kv_lens = batch.lengths.repeat_interleave(nodes)
        positions = (batch.lengths[:, None] + depths).flatten()
        page_table = self._page_table(batch.req_indices, batch.longest)
        layout = self._layout(page_table, (nodes,) * batch.size, kv_lens, batch.longest)
        return Rows(
            row_req_indices, positions, self.pool_rows(row_req_indices, places.flatten()), layout
        )

    def prefix_layout(self, batch: DecodeBatch, kv_lens: Tensor, count: int) -> AttentionMetadata:
        """Lay out `count` query rows per sequence that see `kv_lens` [B * count] i64 pool rows."""
        lens, longest = (count,) * batch.size, batch.longest + 1
        page_table = self._page_table(batch.req_indices, longest)
        return self._layout(page_table, lens, kv_lens, longest)

    def span_pool_rows(self, span: Span) -> Tensor:
        """Return the rows of the pool that hold the positions of a span."""
        req_index, start, end = span
        return self.pool_rows(req_index, torch.arange(start, end, device=self.device))

    def pool_rows(self, req_indices: Tensor | int, positions: Tensor) -> Tensor:
        """Return the rows of the pool that hold `positions` of `req_indices`, elementwise."""
        pages = self.pages[req_indices, positions // self.page_size]
        return pages * self.page_size + positions % self.page_size

    def _page_table(self, req_indices: Tensor, longest: int) -> Tensor:
        return self.pages[req_indices, : self._columns(longest)]

    def _columns(self, longest: int) -> int:
        """Pages of a sequence that is `longest` rows long, as far as it can have them."""
        return min(-(-longest // self.page_size), self.pages.shape[1])

    def _layout(
        self,
        page_table: Tensor,
        lens: tuple[int, ...],
        kv_lens: Tensor,
        longest: int,
        starts: Tensor | None = None,
        bounds: CausalBounds | None = None,
    ) -> AttentionMetadata:
        most = min(longest, page_table.shape[1] * self.page_size)
        if bounds is not None and most < longest:
            bounds = bounds._replace(kv_lens=tuple(min(one, most) for one in bounds.kv_lens))
        return AttentionMetadata(
            page_table=page_table,
            page_size=self.page_size,
            qo_lens=lens,
            kv_lens=kv_lens,
            max_kv_len=most,
            cu_seqlens_q=starts,
            causal_bounds=bounds,
        )
