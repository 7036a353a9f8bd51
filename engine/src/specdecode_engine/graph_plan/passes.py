"""The forward passes of a decode round by shape: what is captured once and replayed ever after.

A round of depth S on B sequences is one target pass (verify), one pass of the draft over the rows
that it lacks (catch up) and S - 1 over drafted tokens (step). Passes of the same shape are the same
whatever the depth of the round: step 0 of three and of seven is one pass.
"""

from dataclasses import dataclass
from enum import StrEnum

from specdecode_engine.draft_shape import DraftShape


class PassKind(StrEnum):
    """What a pass is for."""

    VERIFY = "verify"  # the target, over bonus tokens and drafted ones
    CATCH_UP = "catch_up"  # the draft, over committed tokens; only the last row's output counts
    STEP = "step"  # the draft, over drafted tokens


@dataclass(frozen=True, slots=True, order=True)
class PassShape:
    """Everything about a pass that is no tensor."""

    kind: PassKind
    batch_size: int
    rows: int  # per sequence
    first: int = 0  # of a step: the scratch row of its first row
    seen: int = 0  # columns of the mask [batch_size, rows, seen]; 0 is no mask

    @property
    def total_rows(self) -> int:
        """Rows of the whole batch."""
        return self.batch_size * self.rows

    @property
    def output_rows(self) -> int:
        """Rows that come out."""
        return self.batch_size if self.kind is PassKind.CATCH_UP else self.total_rows


@dataclass(frozen=True, slots=True)
class PassWidths:
    """Sizes of the model that runs a pass."""

    layers: int
    hidden: int  # of the residual stream
    intermediate: int  # of the gated projection
    logits: int  # the vocabulary that it scores
    hidden_in: int = 0  # features or hidden state that each row reads besides its token
    hidden_out: int = 0  # features or hidden state that each row hands out besides its logits


def passes_of(shape: DraftShape, batch_size: int, window: int | None) -> tuple[PassShape, ...]:
    """List the passes of a round; none of them depends on what the round before did.

    Args:
        window: the most rows that a draft catches up on in one pass; None where nothing that runs
            a pass drafts. A round behind one of its own depth lacks a path's length of rows, one
            behind a deeper round, or behind rounds without drafting, up to the whole window.
    """
    is_tree = shape.topk > 1 and shape.num_steps > 0
    nodes = shape.num_tokens
    verify = PassShape(PassKind.VERIFY, batch_size, nodes, seen=nodes if is_tree else 0)
    if shape.num_steps == 0 or window is None:
        return (verify,)
    widths = sorted({shape.path_length, window})
    catch_ups = [PassShape(PassKind.CATCH_UP, batch_size, width) for width in widths]
    starts = range(0, shape.topk * (shape.num_steps - 1), shape.topk)
    steps = [
        PassShape(PassKind.STEP, batch_size, shape.topk, at, at + shape.topk if is_tree else 0)
        for at in starts
    ]
    return (verify, *catch_ups, *steps)
