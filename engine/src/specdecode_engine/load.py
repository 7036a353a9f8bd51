"""How loaded an engine is: what autoscalers follow.

    load = (running + waiting requests) / (places x accept length of late)

Places are the requests that may decode together. A round adds as many tokens to each of them as
the accept length says, so a request of an engine that accepts twice as much needs half the rounds.
Requests by places alone would tell the same load for both, and an autoscaler that keeps that
level lets the time per token double when the accept length halves. Divided by it, keeping it
level keeps the time per token.

1 is a full engine that decodes plainly. One that is full and accepts 3 tokens a round has 1/3, and
2/3 with as many waiting again. A target is the share of places that should be taken, by the accept
length that the target latency was measured at: 0.8 / 3.
"""

import math
from dataclasses import dataclass

MEMORY_ROUNDS = 1000.0
"""Rounds of requests after which an old round counts 1/e."""


@dataclass(slots=True)
class RecentRounds:
    """Tokens and rounds of requests of late, the older the less. Owned by the engine core."""

    tokens: float = 0.0
    request_rounds: float = 0.0

    def count(self, tokens: int, request_rounds: int) -> None:
        """Count a decode round of `request_rounds` requests that added `tokens` to their answers.

        Both fade alike, so that their ratio is one of sums: a mean of ratios would give a round
        of one request the weight of one of many.
        """
        kept = math.exp(-request_rounds / MEMORY_ROUNDS)
        self.tokens = self.tokens * kept + tokens
        self.request_rounds = self.request_rounds * kept + request_rounds

    @property
    def accept_length(self) -> float:
        """Tokens that a round adds to a request; 1, as in plain decoding, before the first."""
        return self.tokens / self.request_rounds if self.request_rounds else 1.0


def load(requests: int, places: int, accept_length: float) -> float:
    """Load of an engine; 0 where it has no places, because it is not there yet."""
    return requests / (places * max(1.0, accept_length)) if places else 0.0
