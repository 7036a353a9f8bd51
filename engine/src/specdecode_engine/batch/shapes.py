"""Shapes of a decode step, without tensors: of its draft, and of its forwards.

A step is one forward of the target (verify) and those of its draft, which the algorithm determines.
Forwards of one shape are the same at every num_steps: the first draft step of three and of seven is
one. Each shape is one CUDA graph.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from specdecode_api.speculation import default_draft_tokens


@dataclass(frozen=True, slots=True)
class DraftShape:
    """How deep and wide to draft.

    `num_tokens` counts the nodes, root included: num_steps + 1 for a chain (topk 1).
    `verify_tokens` is how many drafted tokens of a request are verified on average; 0: all.
    """

    num_steps: int
    topk: int = 1
    num_tokens: int = 1
    verify_tokens: int = 0

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

    def verifying(self, verify_tokens: int | None) -> "DraftShape":
        """Return the same draft, of which so many tokens are verified; None: all of them."""
        if verify_tokens is None or verify_tokens >= self.num_tokens - 1:
            return self
        return replace(self, verify_tokens=verify_tokens)

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
    PLAIN = "plain"  # the target, over bonus tokens alone, without what a draft reads of it
    CATCH_UP = "catch_up"  # the draft, over committed tokens; only the last row's output counts
    DRAFT_STEP = "draft_step"  # the draft, over drafted tokens
    BLOCK = "block"  # the draft, over committed tokens and a block; rows are drafted positions
    MODULE = "module"  # one module of a draft, over the latest rows; only the last one is scored

    @property
    def is_of_target(self) -> bool:
        return self is ForwardKind.VERIFY or self is ForwardKind.PLAIN


@dataclass(frozen=True, slots=True, order=True)
class ForwardShape:
    """Everything about a forward that is not a tensor."""

    kind: ForwardKind
    batch_size: int
    rows: int  # per request
    first: int = 0  # of a draft step: the scratch row of its first row; the number of a module
    seen: int = 0  # columns of the mask [batch_size, rows, seen]; 0 without a mask
    verify_tokens: int = 0  # of a request on average, where `rows` is the most; 0: all

    @property
    def total_rows(self) -> int:
        """Rows of the whole batch."""
        return self.batch_size * (1 + self.verify_tokens if self.verify_tokens else self.rows)

    @property
    def output_rows(self) -> int:
        """Rows of the logits."""
        is_last_scored = self.kind in (ForwardKind.CATCH_UP, ForwardKind.MODULE)
        return self.batch_size if is_last_scored else self.total_rows

    @property
    def hidden_rows(self) -> int:
        """Rows of the hidden states that are returned: the next module reads those of all rows."""
        return self.total_rows if self.kind is ForwardKind.MODULE else self.output_rows


@dataclass(frozen=True, slots=True)
class ForwardWidths:
    """Columns of what a forward returns, per row."""

    logits: int  # vocabulary of the model that it runs
    hidden_out: int = 0  # aux hidden states or hidden state returned besides the logits
    has_ids: bool = False  # whether the tokens that logits belong to differ by row


DraftForwards = Callable[[DraftShape, int], Iterable[ForwardShape]]
"""The forwards of a draft model, for a shape with draft steps and a batch size."""


def forwards_of(
    shape: DraftShape, batch_size: int, draft_forwards: DraftForwards
) -> tuple[ForwardShape, ...]:
    """List the forwards of a step, the largest first; none depends on the step before."""
    is_tree = shape.topk > 1 and shape.num_steps > 0
    nodes = shape.num_tokens
    seen, verified = nodes if is_tree else 0, shape.verify_tokens
    forwards = [ForwardShape(ForwardKind.VERIFY, batch_size, nodes, 0, seen, verified)]
    if shape.num_steps:
        forwards += draft_forwards(shape, batch_size)
    return tuple(sorted(forwards, key=lambda one: (one.total_rows, one), reverse=True))


def plain_forward(batch_size: int) -> ForwardShape:
    """Return the only forward of a step while the draft is unfit."""
    return ForwardShape(ForwardKind.PLAIN, batch_size, 1)


def token_forwards(shape: DraftShape, batch_size: int, window: int) -> Iterator[ForwardShape]:
    """Yield the forwards of a draft that drafts token by token.

    With num_steps S that is one over the committed tokens that it lacks, and S - 1 over drafted
    tokens.

    Args:
        window: the most rows that a draft catches up on in one forward. After a step of the same
            num_steps the draft lacks at most a path's length of rows; after one of more draft
            steps, or of none, up to the whole window.
    """
    for width in {min(shape.path_length, window), window}:
        yield ForwardShape(ForwardKind.CATCH_UP, batch_size, width)
    topk = shape.topk
    for at in range(0, topk * (shape.num_steps - 1), topk):
        seen = at + topk if topk > 1 else 0
        yield ForwardShape(ForwardKind.DRAFT_STEP, batch_size, topk, at, seen)


@dataclass(frozen=True, slots=True)
class StepSizes:
    """The draft shapes that a step can use, and the largest sizes over all of them."""

    shapes: Mapping[int, DraftShape]  # by num_steps, ascending
    max_draft_tokens: int  # rows of the widest verify, bonus token included
    max_path_length: int  # tokens that one step can commit
    scratch_rows: int  # of a draft, per request
    lag_tokens: int  # tokens that a step in flight may add unseen by the host; 0 without overlap

    @classmethod
    def over(cls, shapes: Mapping[int, DraftShape], *, is_overlapped: bool) -> "StepSizes":
        path_length = max(shape.path_length for shape in shapes.values())
        return cls(
            shapes=shapes,
            max_draft_tokens=max(shape.num_tokens for shape in shapes.values()),
            max_path_length=path_length,
            scratch_rows=max(shape.scratch_rows for shape in shapes.values()),
            lag_tokens=path_length if is_overlapped else 0,
        )

    def drafted_tokens(self, num_steps: int) -> int:
        """Tokens that a request drafts."""
        return self.shapes[num_steps].num_tokens - 1

    @property
    def reserve_tokens(self) -> int:
        """Maximum rows of a sequence beyond its known tokens."""
        return self.max_draft_tokens + self.lag_tokens

    @property
    def max_steps(self) -> int:
        """Most draft steps."""
        return max(self.shapes)

    @property
    def topk(self) -> int:
        """Children of a node, the same in every shape that is a tree."""
        return max(shape.topk for shape in self.shapes.values())
