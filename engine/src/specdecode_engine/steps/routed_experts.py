"""The ids of experts that a step returns for the sequences whose requests ask for them.

They come with the tokens: those of the prompt with the first one, and with every token that
decoding adds those of the token before it. So n tokens after a prompt of p have p + n - 1 rows.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specdecode_engine.batch.request import ExpertIds
from specdecode_engine.batch.request_table import DecodeBatch
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.batch.staging import StagingBuffer
from specdecode_engine.steps.model_context import ModelContext

PIECE_ROWS = 4096
"""Rows of a prompt that are gathered at once: the device needs no memory for all of them."""


@dataclass(frozen=True, slots=True)
class RoutedRows:
    """Ids of the sequences of a step that request them."""

    batch_size: int
    pieces: tuple[Tensor, ...]  # [sequences, rows, layers, top_k] each
    places: tuple[tuple[int, ...], ...]  # in the batch, of the sequences of each piece

    def map(self, function: Callable[[Tensor], Tensor]) -> "RoutedRows":
        """Apply a function to every tensor."""
        return RoutedRows(self.batch_size, tuple(map(function, self.pieces)), self.places)

    def records(self) -> list[ExpertIds | None]:
        """Read on the host: the rows of every sequence of the batch that requests them."""
        found: list[list[ExpertIds]] = [[] for _ in range(self.batch_size)]
        for piece, places in zip(self.pieces, self.places, strict=True):
            for place, rows in zip(places, piece.numpy(), strict=True):
                found[place].append(rows.copy())
        return [np.concatenate(rows) if rows else None for rows in found]


@dataclass(frozen=True, slots=True, eq=False)
class RoutedRequest:
    """The batch rows of a decode step that request ids."""

    places: tuple[int, ...]
    rows: Tensor  # [requesting rows] i64

    @classmethod
    def stage(cls, sequences: Items[Sequence], staging: StagingBuffer) -> "RoutedRequest | None":
        """Stage the rows of a batch; None where no sequence requests ids."""
        rows = [i for i, one in enumerate(sequences) if one.request.return_routed_experts]
        return cls(tuple(rows), staging.put(rows)) if rows else None

    def select(self, context: ModelContext, batch: DecodeBatch, width: int) -> RoutedRows:
        """Select the rows of the bonus tokens and of as many more as a step may accept.

        Args:
            batch: as it was before the step; the accepted path is where a chain would have put it.
            width: tokens that the step may emit for each sequence.
        """
        assert context.routed is not None
        req_indices = batch.req_indices[self.rows, None]
        positions = batch.lengths[self.rows, None] + context.table.offsets(width)
        ids = context.routed.read(context.table.pool_rows(req_indices, positions))
        return RoutedRows(batch.size, (ids,), (self.places,))


def routed_prompts(context: ModelContext, sequences: Items[Sequence]) -> RoutedRows | None:
    """Select the rows of prompts whose last row is computed; None where none requests ids.

    A sequence that was preempted has returned all rows but that of its last token.
    """
    pieces: list[Tensor] = []
    places: list[tuple[int, ...]] = []
    for place, sequence in enumerate(sequences):
        if not sequence.request.return_routed_experts:
            continue
        first = len(sequence.tokens) - 1 if sequence.returned_tokens else 0
        for start in range(first, len(sequence.tokens), PIECE_ROWS):
            end = min(start + PIECE_ROWS, len(sequence.tokens))
            pieces.append(_read_span(context, sequence, start, end)[None])
            places.append((place,))
    return RoutedRows(len(sequences), tuple(pieces), tuple(places)) if pieces else None


def _read_span(context: ModelContext, sequence: Sequence, start: int, end: int) -> Tensor:
    assert sequence.req_index is not None
    assert context.routed is not None
    positions = torch.arange(start, end, device=context.table.device)
    pages = context.table.pages[sequence.req_index]
    size = context.table.page_size
    return context.routed.read(pages[positions // size] * size + positions % size)
