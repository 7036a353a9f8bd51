"""Trials in turns on an invented fleet, as the evidence that the judge is given.

A trial is drawn in parts, and no further than its verdict needs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rollout.environment import SLOT_S, draw_environment
from rollout.requests import STRATA, WIDTH, Requests, add_up, draw_arrivals, serve
from rollout.worlds import Candidate, World
from specdecode_operator.judge.alarms import PAIRS
from specdecode_operator.judge.evidence import Latencies, Role
from specdecode_operator.judge.recording import tail_bound
from specdecode_operator.judge.trial_evidence import Counts, Tails, TurnEvidence
from specdecode_operator.judge.turns import (
    PROBE_PAIRS,
    SHORTEST,
    pods_in_pair,
    role_in_turn,
    turn_stretch,
    washout_stretch,
)

FIRST_BOUNDS_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
INTER_BOUNDS_S = (0.002, 0.003, 0.004, 0.006, 0.008, 0.012, 0.016, 0.024)
PARTS_S = (300.0, 1500.0, 1800.0, 3600.0)
"""Lengths of the first parts that a trial is drawn in; the last one is repeated."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How arms take turns: on the same pods by table, or by a restart of all pods."""

    name: str
    pods: int
    hours_s: float = 7200.0
    block_s: float = 60.0
    washout_s: float = 10.0
    is_restart: bool = False


def in_turns(pods: int) -> Arrangement:
    """Turns by table, as `Hot` trials have them."""
    return Arrangement("switchback" if pods == 1 else "crossover", pods)


def by_restart(pods: int, start_s: float = 30.0, warm_up_s: float = 60.0) -> Arrangement:
    """Turns by a restart: blocks of ten times the start, six hours."""
    return Arrangement(
        "switchback_by_restart", pods, 6 * 3600.0, 10.0 * start_s, start_s + warm_up_s, True
    )


@dataclass(frozen=True, slots=True)
class Timeline:
    """Turns of one trial: 2n and 2n + 1 are pair n."""

    seed: int
    arrangement: Arrangement
    ends_s: NDArray[np.float64] = field(init=False)
    counts_from_s: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        washouts, lengths = list[float](), list[float]()
        while sum(lengths) < self.arrangement.hours_s:
            washout_s, block_s = self._turn_s(len(lengths) // 2)
            washouts += [washout_s] * 2
            lengths += [washout_s + block_s] * 2
        ends_s = np.cumsum(lengths)
        object.__setattr__(self, "ends_s", ends_s)
        object.__setattr__(self, "counts_from_s", ends_s - lengths + washouts)

    def _turn_s(self, pair: int) -> tuple[float, float]:
        """Washout and counted length of both turns of a pair."""
        plan = self.arrangement
        if plan.is_restart:  # no probes, and no block below its least length
            stretch = 1.0 + turn_stretch(self.seed, pair + PROBE_PAIRS) - SHORTEST
            return plan.washout_s, plan.block_s * stretch
        washout_s = plan.washout_s * washout_stretch(pair)
        return washout_s, plan.block_s * turn_stretch(self.seed, pair)

    def runs_candidate(self) -> NDArray[np.bool_]:
        """[turns, pods]; pods that do not take part run the baseline."""
        pods = (
            [0] * self.arrangement.pods
            if self.arrangement.is_restart
            else range(self.arrangement.pods)
        )
        is_new = [
            [role_in_turn(self.seed, at // 2, at % 2, pod) is Role.CANDIDATE for pod in pods]
            for at in range(len(self.ends_s))
        ]
        return np.array(is_new) & self.takes_part()

    def takes_part(self) -> NDArray[np.bool_]:
        """[turns, pods]"""
        pods, turns = self.arrangement.pods, range(len(self.ends_s))
        is_restart = self.arrangement.is_restart
        most = [pods if is_restart else pods_in_pair(at // 2, pods) for at in turns]
        return np.arange(pods)[None, :] < np.array(most)[:, None]


@dataclass(frozen=True, slots=True)
class Seen:
    """A trial so far: complete pairs, first turns of early pairs, and the candidate's requests."""

    evidence: TurnEvidence
    ends_s: NDArray[np.float64]
    first_turns: tuple[Counts, ...]
    served: NDArray[np.int64]  # until the end of each turn, washout included
    is_complete: bool


def watch(
    world: World, candidate: Candidate, plan: Arrangement, rng: np.random.Generator
) -> Iterator[Seen]:
    """Draw a trial, part by part; each item has all pairs that are complete by then."""
    line = Timeline(int(rng.integers(2**31)), plan)
    around = draw_environment(world, plan.pods, plan.hours_s, rng)
    turns, slots = len(line.ends_s), len(around.load)
    is_new, takes_part = line.runs_candidate(), line.takes_part()
    pairs, closed = np.zeros((turns // 2, WIDTH), np.int64), tuple[Counts, ...]()
    firsts = np.zeros((PAIRS, WIDTH), np.int64)
    served = np.zeros(turns, np.int64)
    tails, slow_s = Tails(), (0.0, 0.0)
    for part in _parts(slots):
        arrivals = draw_arrivals(around, part, rng)
        turn = np.searchsorted(line.ends_s, arrivals.at_s)
        at = turn, arrivals.pod
        seen = serve(world, candidate, around, arrivals, is_new[at], turn, rng)
        served += np.bincount(turn[seen.is_new], minlength=turns)
        counted = seen.where(takes_part[at] & (arrivals.at_s >= line.counts_from_s[turn]))
        if part.start == 0:
            tails, slow_s = _tails(counted)
        firsts += _first_turns(counted, slow_s)
        _add_pairs(pairs, counted, slow_s)
        complete = int(np.searchsorted(line.ends_s[1::2], part.stop * SLOT_S, side="right"))
        closed += tuple(map(tuple, pairs[len(closed) : complete].tolist()))
        evidence = TurnEvidence(STRATA, tails, closed)
        first_turns = tuple(map(tuple, firsts.tolist()))
        is_complete = part.stop == slots
        yield Seen(evidence, line.ends_s, first_turns, np.cumsum(served), is_complete)


def _parts(slots: int) -> Iterator[slice]:
    start, count = 0, 0
    while start < slots:
        length = PARTS_S[min(count, len(PARTS_S) - 1)]
        end = min(slots, start + int(length / SLOT_S))
        yield slice(start, end)
        start, count = end, count + 1


def _add_pairs(pairs: NDArray[np.int64], seen: Requests, slow_s: tuple[float, float]) -> None:
    pair = seen.group // 2
    low, high = (int(pair.min()), int(pair.max()) + 1) if len(pair) else (0, 0)
    by_pair = Requests(
        pair - low, seen.is_new, seen.stratum, seen.tokens, seen.seconds, seen.steps,
        seen.first_s, seen.failed,
    )  # fmt: skip
    pairs[low:high] += add_up(by_pair, high - low, slow_s)


def _first_turns(seen: Requests, slow_s: tuple[float, float]) -> NDArray[np.int64]:
    """Sums of the first turn of each of the pairs that alarms look at."""
    early = seen.where((seen.group % 2 == 0) & (seen.group < 2 * PAIRS))
    by_pair = Requests(
        early.group // 2, early.is_new, early.stratum, early.tokens, early.seconds, early.steps,
        early.first_s, early.failed,
    )  # fmt: skip
    return add_up(by_pair, PAIRS, slow_s)


def _tails(seen: Requests) -> tuple[Tails, tuple[float, float]]:
    """Bounds of slow observations, from the first pair, as `close_pair` chooses them."""
    first = seen.where(seen.group < 2)
    tails = Tails(
        tail_bound(latencies(first.first_s, FIRST_BOUNDS_S)),
        tail_bound(latencies(first.seconds / first.tokens, INTER_BOUNDS_S)),
    )
    first_s, inter_s = (*FIRST_BOUNDS_S, np.inf), (*INTER_BOUNDS_S, np.inf)
    return tails, (first_s[tails.first_token], inter_s[tails.inter_token])


def latencies(values_s: NDArray[np.float32], bounds_s: tuple[float, ...]) -> Latencies:
    """Count observations by bucket."""
    counts = np.bincount(np.searchsorted(bounds_s, values_s), minlength=len(bounds_s) + 1)
    return Latencies(bounds_s, tuple(counts.astype(float).tolist()), float(values_s.sum()))
