"""How loaded an engine is: the metric that autoscalers follow.

    load = (running + waiting requests) / (max_running_requests x recent accept length)

A decode step adds as many tokens to each request as the accept length, so a request of an engine
with twice the accept length needs half the steps. Requests by `max_running_requests` alone would be
the same for both, and an autoscaler that keeps that level lets the time per token double when the
accept length halves. With the division, a constant load is a constant time per token.

1 is a full engine without speculation. A full engine with accept length 3 has 1/3, and 2/3 with as
many requests waiting. A target is the wanted share of `max_running_requests`, divided by the accept
length at which the target latency was measured: 0.8 / 3.
"""

import math
from dataclasses import dataclass

MEMORY_STEPS = 1000.0
"""Request steps after which the weight of an old step is 1/e."""


@dataclass(slots=True)
class RecentSteps:
    """Tokens and request steps, exponentially decayed. Owned by the engine core."""

    tokens: float = 0.0
    request_rounds: float = 0.0

    def count(self, tokens: int, request_rounds: int) -> None:
        """Count a decode step of `request_rounds` requests that added `tokens` to their answers.

        Both decay alike, so that the accept length is a ratio of sums: a mean of ratios would give
        a step of one request the weight of a step of many.
        """
        kept = math.exp(-request_rounds / MEMORY_STEPS)
        self.tokens = self.tokens * kept + tokens
        self.request_rounds = self.request_rounds * kept + request_rounds

    @property
    def accept_length(self) -> float:
        """Tokens that a decode step adds to a request; 1 before the first step."""
        return self.tokens / self.request_rounds if self.request_rounds else 1.0


def load(requests: int, max_running: int, accept_length: float) -> float:
    """Compute the load; 0 before the engine is loaded, when `max_running` is 0."""
    return requests / (max_running * max(1.0, accept_length)) if max_running else 0.0
