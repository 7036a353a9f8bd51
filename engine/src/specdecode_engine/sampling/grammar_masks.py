"""Grammars as masks on logits, for plain rows and for every node of a draft.

The host advances each grammar by the tokens of the output, so it needs them before it can compute
the next mask; a batch without grammars costs nothing. Letters: R rows with a grammar,
N nodes, W words of 32 tokens.
"""

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.staging import StagingBuffer
from specdecode_engine.grammar import Grammar, GrammarFault, Matcher, mask_nodes

Words = NDArray[np.int32]

MASK_SECONDS = 0.03
"""Of a step, after which drafted nodes are not masked any more: the masks of a hostile grammar take
milliseconds each, and would delay all requests of the batch by their number."""


@dataclass(frozen=True, slots=True, eq=False)
class GrammarRows:
    """The rows of a batch whose requests have a grammar."""

    req_indices: tuple[int, ...]  # [R], requests
    host_rows: tuple[int, ...]  # [R]
    rows: Tensor  # [R] i64


@dataclass(frozen=True, slots=True)
class DraftOnHost:
    """Drafted tokens and their parents on the way to the host, for the rows with a grammar.

    `counts` is how many nodes of each row are verified, root included. `depths` is how many draft
    tokens of each row may be accepted, None for any; set by `apply`.
    """

    table: Tensor  # [R, 2, N] i64, pinned or on the CPU; the root's token means nothing
    counts: tuple[int, ...]
    arrival: "torch.cuda.Event | None"
    depths: list[int | None] = field(default_factory=list)

    def rows(self) -> list[tuple[list[int], list[int]]]:
        """Wait for the tokens; tokens and parents of each row's verified nodes."""
        if self.arrival is not None:
            self.arrival.synchronize()
        rows = zip(self.table.tolist(), self.counts, strict=True)
        return [(tokens[:count], parents[:count]) for (tokens, parents), count in rows]

    def limit(self, accepted: Tensor, batch: GrammarRows) -> Tensor:
        """Accept no draft token [B] i64 after which the next one was sampled without its mask.

        The token after a shorter path is the target's own: the text stays the same.
        """
        if all(depth is None for depth in self.depths):
            return accepted
        most = [self.table.shape[2] if depth is None else depth for depth in self.depths]
        limits = torch.tensor(most, dtype=accepted.dtype, device=accepted.device)
        return accepted.index_copy(0, batch.rows, torch.minimum(accepted[batch.rows], limits))


class GrammarMasks:
    """The grammar states of the requests that have a grammar.

    A grammar that fails invalidates its own request only: tokens chosen there no longer count, and
    `follow` returns the error. The masks of drafted tokens can exhaust a lexer that would suffice
    without them.
    """

    def __init__(self, vocab: int, staging: StagingBuffer) -> None:
        self._vocab = vocab
        self._words = -(-vocab // 32)
        self._staging = staging
        self._bits = torch.arange(32, device=staging.device, dtype=torch.int32)
        self.clock: Callable[[], float] = time.perf_counter
        self.states: dict[int, Matcher | GrammarFault] = {}
        self._grammars: dict[int, Grammar] = {}

    def open(self, req_index: int, grammar: Grammar, output: list[int], ends_late: bool) -> None:
        """Start a request, after the output that it already has."""
        self._grammars[req_index] = grammar
        try:
            self.states[req_index] = grammar.follow(output, ends_late)
        except GrammarFault as fault:
            self.states[req_index] = fault

    def close(self, req_index: int) -> None:
        """Free a request; its grammar keeps the state, in case that it continues later."""
        grammar, state = self._grammars.pop(req_index), self.states.pop(req_index)
        if isinstance(state, Matcher):
            grammar.keep(state)

    def needs_host_tokens(self, req_indices: Iterable[int]) -> bool:
        """Whether `follow` needs the last tokens of any request before the next are sampled."""
        return bool(self.states) and any(req_index in self.states for req_index in req_indices)

    def follow(self, req_index: int, tokens: tuple[int, ...]) -> str | None:
        """Advance a request's grammar by tokens that were appended to its output.

        Returns:
            What went wrong with its grammar, in which case none of the tokens counts.
        """
        state = self.states.get(req_index)
        if isinstance(state, Matcher):
            try:
                for token in tokens:
                    if not state.ends_with(token):
                        state.advance(token)
            except GrammarFault as fault:
                self.states[req_index] = state = fault
        return str(state) if isinstance(state, GrammarFault) else None

    def stage(self, req_indices: Items[int]) -> GrammarRows | None:
        """Stage which rows of a batch have a grammar; None where none has."""
        if self.states.keys().isdisjoint(req_indices):
            return None
        rows = [row for row, req_index in enumerate(req_indices) if req_index in self.states]
        req_indices = tuple(req_indices[row] for row in rows)
        return GrammarRows(req_indices, tuple(rows), self._staging.put(rows))

    def ship(
        self, batch: GrammarRows, draft: Draft, num_verify_rows: tuple[int, ...]
    ) -> DraftOnHost:
        """Start to copy what `apply` needs of a draft, before the target's forward is launched.

        The host then advances the grammars while the target computes.

        Args:
            num_verify_rows: nodes that each request of the whole batch verifies, root included.
        """
        tokens = torch.nn.functional.pad(draft.tokens[batch.rows], (1, 0))
        nodes = torch.arange(tokens.shape[1], device=tokens.device)
        chain = (nodes - 1).clamp(min=0).expand_as(tokens)
        parents = chain if draft.tree is None else draft.tree.parents[batch.rows]
        table = torch.stack([tokens, parents], dim=1)
        arrival = None
        if table.is_cuda:
            pinned = torch.empty(table.shape, dtype=table.dtype, pin_memory=True)
            table = pinned.copy_(table, non_blocking=True)
            arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrival.record()
        return DraftOnHost(table, tuple(num_verify_rows[row] for row in batch.host_rows), arrival)

    def apply(self, logits: Tensor, batch: GrammarRows, on_host: DraftOnHost | None) -> Tensor:
        """Return logits [batch, N, vocab] with what a grammar forbids at minus infinity.

        Args:
            on_host: what `ship` returned for the same rows; None without a draft. It then limits
                what may be accepted.
        """
        drafted = on_host.rows() if on_host else [([0], [0])] * len(batch.req_indices)
        words = np.empty((len(drafted), logits.shape[1], self._words), dtype=np.int32)
        start_s, depths = self.clock(), []
        for row, (req_index, (tokens, parents)) in enumerate(
            zip(batch.req_indices, drafted, strict=True)
        ):
            # What the rows before left of their shares is left to the others.
            until_s = start_s + MASK_SECONDS * (row + 1) / len(drafted)
            depths.append(self._walk(req_index, tokens, parents, words[row], until_s))
        if on_host is not None:
            on_host.depths[:] = depths
        masked = logits[batch.rows].masked_fill(~self._unpack(words), -torch.inf)
        return logits.index_copy(0, batch.rows, masked)

    def _walk(
        self, req_index: int, tokens: list[int], parents: list[int], out: Words, until_s: float
    ) -> int | None:
        """Mask the nodes of a row until a time; return how many draft tokens may be accepted."""
        out[:] = -1
        state = self.states[req_index]
        if isinstance(state, GrammarFault):
            return None
        is_late = partial(self._is_after, until_s)
        try:
            return mask_nodes(state, tokens, parents, out[: len(tokens)], is_late)
        except GrammarFault as fault:
            self.states[req_index] = fault
            out[:] = -1
            return None

    def _is_after(self, time_s: float) -> bool:
        return self.clock() > time_s

    def _unpack(self, words: Words) -> Tensor:
        """Bits to booleans, on the device: [R, N, W] i32 to [R, N, vocab]."""
        packed = torch.from_numpy(words)
        if self._staging.device.type == "cuda":
            packed = packed.pin_memory().to(self._staging.device, non_blocking=True)
        bits = (packed[..., None] >> self._bits) & 1
        return bits.flatten(2)[..., : self._vocab].bool()
