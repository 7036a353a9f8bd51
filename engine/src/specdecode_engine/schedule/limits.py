"""The sizes that bound scheduling, all derived once from the boot file and the model."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """How much fits.

    `max_draft_tokens` is the widest verify of any step, the bonus token's row included: 1 without
    speculation. Every reservation uses it, whatever the actual depth of the step.
    """

    max_running: int
    max_queued: int
    chunk_tokens: int
    context_length: int
    max_draft_tokens: int
    page_size: int
    pages: int
    lag_tokens: int = 0  # tokens that a step in flight may add before the host knows

    @property
    def longest_sequence(self) -> int:
        """Tokens, prompt and answer, that one sequence may reach in this context and this pool."""
        rows = (self.pages - 1) * self.page_size
        return min(self.context_length, rows - self.reserve_tokens)

    @property
    def reserve_tokens(self) -> int:
        """Rows beyond the known tokens that a sequence may come to hold."""
        return self.max_draft_tokens + self.lag_tokens

    @property
    def pages_per_sequence(self) -> int:
        """Width of a page table that holds the longest sequence and its widest step."""
        return -(-(self.longest_sequence + self.reserve_tokens) // self.page_size)
