"""How many requests, tokens and pages fit into an engine."""

from dataclasses import dataclass

from specdecode_engine.schedule.cached_states import LEAST_TOKENS


@dataclass(frozen=True, slots=True)
class Limits:
    """How much fits.

    `max_draft_tokens` is the widest verify of any step, the bonus token's row included: 1 without
    speculation. Every reservation uses it, whatever the actual draft steps.
    """

    max_running: int
    max_queued: int
    chunk_tokens: int
    context_length: int
    max_draft_tokens: int
    page_size: int
    pages: int
    prefill_delay_steps: float = 0.0  # as of `PrefillPace`
    lag_tokens: int = 0  # tokens that a step in flight may add before the host knows
    window: int | None = None  # positions seen by layers that keep their rows in window pages
    window_pages: int = 0  # window page 0 included
    kv_bytes: int = 0  # of all pages and window pages in target and draft
    cached_states: int | None = None  # of recurrent layers; None: there are none
    cached_state_tokens: int = LEAST_TOKENS
    # Tokens, prompt and answer, beyond which target or draft use another rotary table, ascending.
    rotary_limits: tuple[int, ...] = ()

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
