"""Which draft positions of a batch are worth verifying.

Of all (request, position) the set with the most expected tokens per second is a prefix of their
list sorted by survival, since survival falls with the position: the tokens of the set are the most
that as many rows can yield. A draft step runs for the whole batch, so the best prefix is found for
each number of draft steps, among the positions that these reach. Requests of one group are alike.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specdecode_engine.adaptive.cost import VerifyPiece

Entry = tuple[float, int, int, int]
"""Survival times -1, position, group, and requests of the group: sorted as it is."""


NOTHING = 2.0  # more than any survival


class Prefix(NamedTuple):
    """The best prefix for one number of draft steps."""

    rate: float  # expected tokens per second of the batch
    seconds: float
    least: float  # survival of the last position that is in it; above 1 where none is
    deepest: int  # position that is in it; 0 where none is


@dataclass(frozen=True, slots=True)
class BatchCost:
    """Seconds of a step without drafting: `fixed_s` + `row_s` x rows + a curve over rows."""

    fixed_s: float
    row_s: float
    pieces: Sequence[VerifyPiece]


PADDED_ROWS = (VerifyPiece(math.inf, 0.0, 0.0, 0.0, 0.0),)  # rows that are computed anyway


class Positions:
    """The draft positions of a batch in the order of their survival.

    Args:
        groups: number of requests in each.
        survival: of each group, by position.
        due: groups whose first position is verified wherever there is a draft.
        width: rows of a position.
    """

    def __init__(
        self,
        groups: Mapping[int, int],
        survival: Mapping[int, Sequence[float]],
        due: Collection[int],
        width: int,
    ) -> None:
        self.requests = sum(groups.values())
        self._width = width
        tried = [(groups[group], survival[group][0]) for group in due if survival[group]]
        self._due_requests = sum([requests for requests, _ in tried])
        self._due_tokens = sum([requests * chance for requests, chance in tried])
        self._entries: list[Entry] = sorted(
            [
                (-chance, position, group, requests)
                for group, requests in groups.items()
                for position, chance in enumerate(survival[group], start=1)
                if position > 1 or group not in due
            ]
        )

    def best_prefix(self, num_steps: int, drafting_s: float, cost: BatchCost) -> Prefix:
        """Find the best prefix of the positions that `num_steps` reach; the roots are in any."""
        tokens, rows = float(self.requests), self.requests
        if num_steps:
            tokens += self._due_tokens
            rows += self._due_requests * self._width
        row_s, width, last = cost.row_s, self._width, -NOTHING
        rest = iter(cost.pieces)
        end, start, curve_s, slope, least = next(piece for piece in rest if rows <= piece.end)
        fixed_s = cost.fixed_s + drafting_s
        best_s = fixed_s + row_s * rows + curve_s + slope * (rows - start)
        best_rate, reached, deepest = tokens / best_s, 0, 0
        for negative, position, _, requests in self._entries:
            if position > num_steps:
                continue
            if -negative < best_rate * (row_s + least) * width:
                break  # no later row yields as many tokens for its time as the best prefix
            reached = position if position > reached else reached
            tokens -= negative * requests
            rows += requests * width
            while rows > end:
                end, start, curve_s, slope, least = next(rest)
            seconds = fixed_s + row_s * rows + curve_s + slope * (rows - start)
            if tokens > best_rate * seconds:
                best_rate, best_s = tokens / seconds, seconds
                last, deepest = negative, reached
        return Prefix(best_rate, best_s, -last, deepest)
