"""Shapes of a decode step, without tensors: of its draft, and of its forwards.

A step with num_steps S on B requests is one forward of the target (verify), one of the draft over
the committed tokens that it lacks (catch up) and S - 1 over drafted tokens (draft step). A draft
of blocks has one forward in place of both, the same at every num_steps but 0. Forwards
of one shape are the same at every num_steps: the first draft step of three and of seven is one.
Each shape is one CUDA graph.
"""

from dataclasses import dataclass
from enum import StrEnum

from specdecode_api.speculation import default_draft_tokens


@dataclass(frozen=True, slots=True)
class DraftShape:
    """How deep and wide to draft.

    `num_tokens` counts the nodes to verify, root included: num_steps + 1 for a chain (topk 1).
    """

    num_steps: int
    topk: int = 1
    num_tokens: int = 1

    @classmethod
    def chain(cls, num_steps: int) -> "DraftShape":
        """Draft a chain: one token after the other."""
        return cls(num_steps, 1, num_steps + 1)

    @classmethod
    def of(cls, num_steps: int, topk: int, num_tokens: int | None = None) -> "DraftShape":
        """Draft `num_steps` deep; a tree without a number of nodes gets the usual one."""
        if topk == 1 or num_steps == 0:
            return cls.chain(num_steps)
        return cls(num_steps, topk, num_tokens or default_draft_tokens(topk, num_steps))

    @property
    def path_length(self) -> int:
        """Nodes on the longest path, root included: the width of everything that was accepted."""
        return min(self.num_steps, self.num_tokens - 1) + 1

    def tokens_up_to(self, num_steps: int) -> int:
        """Bound of the nodes that are at most `num_steps` deep, root included.

        A step proposes topk tokens after each of the topk nodes that it expands; the first step
        expands the root alone.
        """
        if num_steps == 0:
            return 1
        return min(1 + self.topk + (num_steps - 1) * self.topk**2, self.num_tokens)

    @property
    def scratch_rows(self) -> int:
        """Rows of a draft's scratch that the nodes expanded in one step take."""
        return self.topk * max(self.num_steps - 1, 1)


class ForwardKind(StrEnum):
    """What a forward is for."""

    VERIFY = "verify"  # the target, over bonus tokens and drafted ones
    CATCH_UP = "catch_up"  # the draft, over committed tokens; only the last row's output counts
    DRAFT_STEP = "draft_step"  # the draft, over drafted tokens
    BLOCK = "block"  # the draft, over committed tokens and a block; rows are drafted positions


@dataclass(frozen=True, slots=True, order=True)
class ForwardShape:
    """Everything about a forward that is not a tensor."""

    kind: ForwardKind
    batch_size: int
    rows: int  # per request
    first: int = 0  # of a draft step: the scratch row of its first row
    seen: int = 0  # columns of the mask [batch_size, rows, seen]; 0 without a mask

    @property
    def total_rows(self) -> int:
        """Rows of the whole batch."""
        return self.batch_size * self.rows

    @property
    def output_rows(self) -> int:
        """Rows of the outputs."""
        return self.batch_size if self.kind is ForwardKind.CATCH_UP else self.total_rows


@dataclass(frozen=True, slots=True)
class ForwardWidths:
    """Columns of what a forward reads and returns, per row."""

    logits: int  # vocabulary of the model that it runs
    hidden_in: int = 0  # aux hidden states or hidden state read besides the token
    hidden_out: int = 0  # aux hidden states or hidden state returned besides the logits


def forwards_of(
    shape: DraftShape, batch_size: int, window: int | None, block_rows: int = 0
) -> tuple[ForwardShape, ...]:
    """List the forwards of a step, the largest first; none depends on the step before.

    Args:
        block_rows: drafted positions of a block, whatever `shape` verifies of them; 0: the draft
            drafts token by token.
        window: the most rows that a draft catches up on in one forward; None without a draft model.
            After a step of the same num_steps the draft lacks at most a path's length of rows;
            after one of more draft steps, or of none, up to the whole window.
    """
    is_tree = shape.topk > 1 and shape.num_steps > 0
    nodes = shape.num_tokens
    verify = ForwardShape(ForwardKind.VERIFY, batch_size, nodes, seen=nodes if is_tree else 0)
    if shape.num_steps == 0 or window is None:
        return (verify,)
    if block_rows:
        return _largest_first(verify, ForwardShape(ForwardKind.BLOCK, batch_size, block_rows))
    widths = {shape.path_length, window}
    catch_ups = [ForwardShape(ForwardKind.CATCH_UP, batch_size, width) for width in widths]
    starts = range(0, shape.topk * (shape.num_steps - 1), shape.topk)
    draft_steps = [
        ForwardShape(
            ForwardKind.DRAFT_STEP, batch_size, shape.topk, at, at + shape.topk if is_tree else 0
        )
        for at in starts
    ]
    return _largest_first(verify, *catch_ups, *draft_steps)


def _largest_first(*forwards: ForwardShape) -> tuple[ForwardShape, ...]:
    return tuple(sorted(forwards, key=lambda one: (one.total_rows, one), reverse=True))
