"""What a forward of a decode step starts from, before its rows are laid out.

Positions, page tables, slots and committed tokens follow from the request table, which stays in
place: a CUDA graph computes them itself. Letters: B batch, n rows per request.
"""

from typing import NamedTuple

from torch import Tensor

from specdecode_engine.batch.request_table import DecodeBatch, RequestTable
from specdecode_engine.batch.verify_rows import VerifyRows


class DecodeInputs(NamedTuple):
    """All that changes between two runs of one forward, besides what the device keeps itself.

    What is None depends on the forward alone, never on the run.
    """

    req_indices: Tensor  # [B] i64
    longest: int  # bound of the lengths
    rows: int  # per request
    tokens: Tensor | None = None  # [B, drafted] i64
    # [B, n] i64 each: of a tree's drafted tokens in the level before, from the second level on
    parents: tuple[Tensor, ...] = ()
    hidden: Tensor | None = None  # [B, width] or [B * n, width]: what the level before left
    depths: Tensor | None = None  # [B, n] i64: of a tree's nodes
    mask: Tensor | None = None  # [B, n, n] bool: the ancestors of a tree's nodes
    first: int = 0  # scratch row of the first row
    batch: DecodeBatch | None = None  # what was gathered for these requests
    committed: int | None = None  # latest committed rows to compute; None: as many as can be
    is_greedy: bool = True  # whether the likeliest tokens of a draft are wanted
    verify: VerifyRows | None = None  # the nodes that have rows; None: all of them
    # [B] i64, with padding, the drafted tokens that each request verifies, and their mean; see
    # `divide`. A CUDA graph lays out its rows from them.
    verified: Tensor | None = None
    verify_tokens: int = 0

    @property
    def batch_size(self) -> int:
        return len(self.req_indices)

    def divided_rows(self) -> VerifyRows:
        """Lay out the rows of the tokens that `verified` counts."""
        assert self.verified is not None
        total = len(self.verified) * (1 + self.verify_tokens)
        return VerifyRows.divided(self.verified, self.rows, total)

    def gather(self, table: RequestTable) -> DecodeBatch:
        """Return the batch, gathered now unless it was before."""
        if self.batch is not None:
            return self.batch
        nobody = (0,) * self.batch_size
        longest = (self.longest,) * self.batch_size
        return table.decode_batch(nobody, longest, self.req_indices, is_planned=False)
