"""The drafted nodes that a step verifies, a number of its own for each request of the batch.

The numbers are chosen on the host before the launch, by the limits of requests, or on the device,
by what the draft expects of its nodes (`divide`). The forward of the target then has a row for each
chosen node and for no other: the first ones of every draft, which contain the ancestors of all of
them. After the forward, nodes that were not verified repeat the last row of their request and are
never accepted. Letters: B batch, N nodes of a draft, root included, T rows.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request_table import Rows
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.batch.staging import StagingBuffer
from specdecode_kernels import CausalBounds

VerifyRowsPolicy = Callable[[DraftShape, tuple[Sequence, ...]], tuple[int, ...]]
"""Chooses how many nodes of its draft each sequence verifies, 1 (the root) to `num_tokens`."""


def rows_within_limits(shape: DraftShape, sequences: tuple[Sequence, ...]) -> tuple[int, ...]:
    """Verify every node that can be part of a request's output."""
    steps, size = shape.num_steps, len(sequences)
    # For every request in every step: `useful_steps`, without a call for each.
    rooms = [s.total_limit - len(s.tokens) - s.in_flight_steps - 1 for s in sequences]
    limits = [s.request.max_steps for s in sequences]
    if not steps or (min(rooms) >= steps and limits.count(None) == size):
        return (shape.num_tokens,) * size  # the common case
    useful = [sequence.useful_steps(steps) for sequence in sequences]
    return tuple(shape.num_tokens if n == steps else shape.tokens_up_to(n) for n in useful)


def check_verify_rows(chosen: tuple[int, ...], shape: DraftShape, batch_size: int) -> None:
    """Check what a policy chose.

    Raises:
        ValueError: it is not one number of 1 to `num_tokens` for each request.
    """
    if chosen.count(shape.num_tokens) == len(chosen) == batch_size:  # the common case
        return
    if len(chosen) != batch_size or min(chosen) < 1 or max(chosen) > shape.num_tokens:
        raise ValueError(
            f"verify rows {chosen} must be one number from 1 to {shape.num_tokens} for each of "
            f"the {batch_size} requests; correct the policy that chose them"
        )


def lay_out_nodes(counts: Items[int], width: int) -> tuple[list[int], list[int]]:
    """Place the first `counts[b]` of the `width` nodes of each request b in rows.

    Returns:
        The node of each row, b * width + place, and the row of each node, where a node without a
        row has the last one of its request.
    """
    nodes: list[int] = []
    rows: list[int] = []
    for request, count in enumerate(counts):
        first, start = len(nodes), request * width
        nodes += range(start, start + count)
        rows += range(first, first + count)
        rows += [first + count - 1] * (width - count)
    return nodes, rows


def divide(scores: Tensor, batch_size: int, verify_tokens: int) -> Tensor:
    """Choose the drafted tokens with the best scores of a batch, `verify_tokens` times its size.

    A token is chosen with all before it in its draft, as none scores above the one before. Of equal
    scores the earlier token in its draft is chosen, and of these that of the earlier request.

    Args:
        scores: [B, N - 1] f32, see `Draft.scores`; minus infinity for what may not be accepted.
        batch_size: with padding, whose tokens score lowest.

    Returns:
        [batch_size] i64, the tokens that each request verifies.
    """
    size, width = scores.shape
    if size < batch_size:
        scores = torch.cat([scores, scores.new_full((batch_size - size, width), -torch.inf)])
    ranked = scores.t().flatten().sort(descending=True, stable=True).indices
    chosen = ranked[: batch_size * verify_tokens] % batch_size  # requests
    verified = torch.zeros(batch_size, dtype=torch.int64, device=scores.device)
    return verified.index_add_(0, chosen, torch.ones_like(chosen))


def _spread(batch_size: int, most: int, total: int) -> tuple[int, ...]:
    """Return numbers from 1 to `most` with this sum, of which as many as can be are `most`."""
    full, rest = divmod(total - batch_size, most - 1)
    lens = [most] * full + ([1 + rest] if rest else [])
    return (*lens, *[1] * (batch_size - len(lens)))


@dataclass(frozen=True, slots=True, eq=False)
class VerifyRows:
    """The rows of a step that does not verify every node of every draft."""

    counts: tuple[int, ...]  # nodes verified, root included; see `AttentionMetadata.qo_lens`
    left_out: Tensor  # [B, N - 1] i64, -1 for drafted nodes that are not verified, 0 for others
    cu_seqlens: Tensor  # [B + 1] i64, where the rows of each request begin, and their end
    nodes: Tensor  # [T] i64, request * N + node
    rows: Tensor  # [B, N] i64, the row of each node; see `lay_out_nodes`
    is_on_device: bool = False  # whether only the device knows the numbers

    @classmethod
    def divided(cls, verified: Tensor, num_tokens: int, total: int) -> "VerifyRows":
        """Lay out the rows of drafts that `divide` has divided, without a wait for the device.

        Args:
            verified: [B] i64, drafted tokens that each request verifies.
            total: T.
        """
        ends = (verified + 1).cumsum(0)
        starts, places = ends - verified - 1, torch.arange(num_tokens, device=verified.device)
        at = torch.arange(total, device=verified.device)
        request = torch.searchsorted(ends, at, right=True)
        is_on_device = verified.is_cuda
        return cls(
            _spread(len(verified), num_tokens, total)
            if is_on_device
            else tuple((verified + 1).tolist()),
            -(places[1:] > verified[:, None]).long(),
            torch.cat([starts[:1], ends]),
            request * num_tokens + at - starts[request],
            starts[:, None] + torch.minimum(places, verified[:, None]),
            is_on_device,
        )

    @classmethod
    def stage(
        cls, counts: tuple[int, ...], num_tokens: int, staging: StagingBuffer
    ) -> "VerifyRows | None":
        """Stage the rows of a step; None where every request verifies all `num_tokens` nodes."""
        if min(counts) == num_tokens:
            return None
        nodes, rows = lay_out_nodes(counts, num_tokens)
        left_out: list[int] = []
        for count in counts:
            left_out += [0] * (count - 1) + [-1] * (num_tokens - count)
        return cls(
            counts,
            staging.put(left_out).view(len(counts), num_tokens - 1),
            staging.put([0, *accumulate(counts)]),
            staging.put(nodes),
            staging.put(rows).view(len(counts), num_tokens),
        )

    def select(self, rows: Rows) -> Rows:
        """Keep the rows of the verified nodes, of rows [B * N] laid out for all nodes."""
        layout, width = rows.layout, self.rows.shape[1]
        bounds = None if self.is_on_device else layout.causal_bounds
        if bounds is not None:
            left_out = [width - count for count in self.counts]
            lens = tuple(n - less for n, less in zip(bounds.kv_lens, left_out, strict=True))
            bounds = CausalBounds(lens, min(bounds.inexact_rows, max(self.counts)))
        return Rows(
            rows.req_indices[self.nodes],
            rows.positions[self.nodes],
            rows.slot_mapping[self.nodes],
            replace(
                layout,
                qo_lens=self.counts,
                kv_lens=layout.kv_lens[self.nodes],
                cu_seqlens_q=self.cu_seqlens,
                causal_bounds=bounds,
                qo_lens_on_device=self.is_on_device,
            ),
        )

    def acceptable(self) -> Tensor:
        """Count the drafted tokens of each request that are verified and may be accepted, [B]."""
        return (self.left_out == 0).sum(dim=1)

    def limit(self, draft: Draft) -> Draft:
        """Replace the tokens of nodes that are not verified by -1, which no target chooses."""
        return replace(draft, tokens=draft.tokens | self.left_out[: len(draft.tokens)])
