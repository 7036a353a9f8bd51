"""Which rows of a prefill are in whole blocks of their prompts, and take the path for many rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.batch.sequence import PrefillChunk
from specdecode_engine.steps.model_context import ModelContext
from specdecode_kernels import RowSplit, tokens_in_blocks


@dataclass(frozen=True, slots=True, eq=False)
class BlockRows:
    """The rows of prompt chunks in whole blocks, and the others: [n] i64 each."""

    inside: Tensor
    outside: Tensor

    @classmethod
    def stage(cls, context: ModelContext, chunks: tuple[PrefillChunk, ...]) -> "BlockRows | None":
        """Stage the rows of chunks; None where all take one path."""
        if context.ops.row_paths is None:
            return None
        inside, outside = rows_by_block(chunks)
        if not inside:
            return None
        return cls(context.staging.put(inside), context.staging.put(outside))

    def with_nodes(self, num_rows: int) -> RowSplit:
        """Split a forward of the chunks and of decode rows after them, `num_rows` in all."""
        first = len(self.inside) + len(self.outside)
        nodes = torch.arange(first, num_rows, device=self.outside.device)
        return RowSplit(torch.cat([self.outside, nodes]), self.inside)


def rows_by_block(chunks: tuple[PrefillChunk, ...]) -> tuple[list[int], list[int]]:
    """Return which rows of the chunks lie in whole blocks of their prompts, and the others.

    Tokens of an answer that are computed again, after preemption or by another engine, lie in none.
    """
    inside, outside, first = list[int](), list[int](), 0
    for chunk in chunks:
        limit = tokens_in_blocks(len(chunk.sequence.request.prompt_ids))
        count = chunk.end - chunk.start
        border = first + min(max(limit - chunk.start, 0), count)
        inside += range(first, border)
        outside += range(border, first + count)
        first += count
    return inside, outside


@contextmanager
def computed_by_blocks(
    context: ModelContext, rows: BlockRows | None, num_rows: int
) -> Iterator[None]:
    """Compute the maps of a forward of `num_rows` rows by the paths of these."""
    paths = context.ops.row_paths
    if paths is None or rows is None:
        yield
        return
    with paths.split(rows.with_nodes(num_rows)):
        yield
