"""One number of draft steps, limited to what the table allows for the batch size."""

from specdecode_engine.adaptive.policy import Decision, Feedback, RangeState, Reason
from specdecode_engine.adaptive.routing import ExactRouting, Routing
from specdecode_engine.adaptive.table import BatchRange, RangeTable


class StaticPolicy:
    """Always the draft steps at start.

    Where a batch range does not list `num_steps`, its largest smaller candidate is used, or its
    smallest one.
    """

    routing: Routing = ExactRouting()

    def __init__(self, num_steps: int, table: RangeTable | None = None) -> None:
        self.table = table or RangeTable([BatchRange(1, (num_steps,))])
        self._num_steps = num_steps

    def decide(self, batch_size: int, kv_tokens: int) -> Decision:
        """Look up the range of `batch_size`."""
        entry = self.table.range_of(batch_size)
        return Decision(entry.nearest(self._num_steps), entry.lower_bound, 0, Reason.STATIC)

    def observe(self, feedback: Feedback) -> None:
        """Ignore the result."""

    def reload(self, table: RangeTable) -> None:
        """Replace the table."""
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
