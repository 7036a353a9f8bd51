"""One depth, kept within what the table allows for the batch size."""

from specdecode_engine.depth.decision import Decision, Feedback, RangeState, Reason
from specdecode_engine.depth.ranges import BatchRange, DepthTable
from specdecode_engine.depth.routing import ExactRouting


class StaticDepth:
    """The depth at start, always.

    Where a range of batch sizes does not list `num_steps`, its largest smaller candidate is used,
    or its smallest one.
    """

    routing = ExactRouting()

    def __init__(self, num_steps: int, table: DepthTable | None = None) -> None:
        self.table = table or DepthTable([BatchRange(1, (num_steps,))])
        self._num_steps = num_steps

    def decide(self, batch_size: int, kv_tokens: int) -> Decision:
        """Look up the range that `batch_size` falls into."""
        entry = self.table.range_of(batch_size)
        return Decision(entry.nearest(self._num_steps), entry.lower_bound, 0, Reason.STATIC)

    def observe(self, feedback: Feedback) -> None:
        """Learn nothing."""

    def reload(self, table: DepthTable) -> None:
        """Choose in another table from now on."""
        self.table = table

    def states(self) -> tuple[RangeState, ...]:
        """Describe every range."""
        return tuple(
            RangeState(
                entry.lower_bound,
                entry.candidate_steps,
                entry.nearest(self._num_steps),
                Reason.STATIC,
            )
            for entry in self.table.ranges
        )
