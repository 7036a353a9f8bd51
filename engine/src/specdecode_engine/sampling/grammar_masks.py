"""Grammars as masks on logits, for plain rows and for every node of a draft.

The host advances each grammar by the tokens of the output, so it needs them before it can compute
the next mask; a batch without grammars costs nothing. Letters: R rows with a grammar,
N nodes, W words of 32 tokens.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdecode_engine.batch.draft import Draft
from specdecode_engine.grammar import Grammar, GrammarFault, Matcher, mask_nodes

Words = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class DraftOnHost:
    """Drafted tokens and their parents on the way to the host, for the rows with a grammar."""

    table: Tensor  # [R, 2, N] i64, pinned or on the CPU; the root's token means nothing
    arrival: "torch.cuda.Event | None"

    def rows(self) -> list[tuple[list[int], list[int]]]:
        """Wait for the tokens; tokens and parents of each row."""
        if self.arrival is not None:
            self.arrival.synchronize()
        return [(tokens, parents) for tokens, parents in self.table.tolist()]


class GrammarMasks:
    """The grammar states of the requests that have a grammar.

    A grammar that fails invalidates its own request only: tokens chosen there no longer count, and
    `follow` returns the error.
    """

    def __init__(self, vocab: int, device: torch.device) -> None:
        self._vocab = vocab
        self._words = -(-vocab // 32)
        self._device = device
        self._bits = torch.arange(32, device=device, dtype=torch.int32)
        self.states: dict[int, Matcher | GrammarFault] = {}

    def open(self, req_index: int, grammar: Grammar, output: list[int], ends_late: bool) -> None:
        """Start a request, after the output that it already has."""
        try:
            self.states[req_index] = grammar.follow(output, ends_late)
        except GrammarFault as fault:
            self.states[req_index] = fault

    def close(self, req_index: int) -> None:
        """Free a request."""
        del self.states[req_index]

    def needs_host_tokens(self, req_indices: list[int]) -> bool:
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

    def ship(self, req_indices: list[int], draft: Draft | None) -> DraftOnHost | None:
        """Start to copy what `apply` needs of a draft, before the target's forward is launched.

        The host then advances the grammars while the target computes.
        """
        rows = self._rows(req_indices)
        if draft is None or not rows:
            return None
        chosen = torch.tensor(rows, device=self._device)
        tokens = torch.nn.functional.pad(draft.tokens[chosen], (1, 0))
        nodes = torch.arange(tokens.shape[1], device=self._device)
        chain = (nodes - 1).clamp(min=0).expand_as(tokens)
        parents = chain if draft.tree is None else draft.tree.parents[chosen]
        table = torch.stack([tokens, parents], dim=1)
        arrival = None
        if table.is_cuda:
            pinned = torch.empty(table.shape, dtype=table.dtype, pin_memory=True)
            table = pinned.copy_(table, non_blocking=True)
            arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrival.record()
        return DraftOnHost(table, arrival)

    def apply(
        self, logits: Tensor, req_indices: list[int], on_host: DraftOnHost | None = None
    ) -> Tensor:
        """Return logits [batch, N, vocab] with what a grammar forbids at minus infinity.

        Args:
            on_host: what `ship` returned for the same requests; None without a draft.
        """
        rows = self._rows(req_indices)
        if not rows:
            return logits
        drafted = on_host.rows() if on_host else [([0], [0])] * len(rows)
        words = np.empty((len(rows), logits.shape[1], self._words), dtype=np.int32)
        for row, (tokens, parents), out in zip(rows, drafted, words, strict=True):
            self._walk(req_indices[row], tokens, parents, out)
        chosen = torch.tensor(rows, device=self._device)
        masked = logits[chosen].masked_fill(~self._unpack(words), -torch.inf)
        return logits.index_copy(0, chosen, masked)

    def _rows(self, req_indices: list[int]) -> list[int]:
        return [row for row, req_index in enumerate(req_indices) if req_index in self.states]

    def _walk(self, req_index: int, tokens: list[int], parents: list[int], out: Words) -> None:
        state = self.states[req_index]
        if isinstance(state, Matcher):
            try:
                mask_nodes(state, tokens, parents, out)
            except GrammarFault as fault:
                self.states[req_index] = fault
            else:
                return
        out[:] = -1

    def _unpack(self, words: Words) -> Tensor:
        """Bits to booleans, on the device: [R, N, W] i32 to [R, N, vocab]."""
        packed = torch.from_numpy(words)
        if self._device.type == "cuda":
            packed = packed.pin_memory().to(self._device, non_blocking=True)
        bits = (packed[..., None] >> self._bits) & 1
        return bits.flatten(2)[..., : self._vocab].bool()
