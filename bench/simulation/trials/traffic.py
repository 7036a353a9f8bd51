"""Trials in turns on an invented fleet, as the evidence that the judge is given.

A trial is drawn in parts, and no further than its verdict needs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from bench.simulation.trials.environment import SLOT_S, draw_environment
from bench.simulation.trials.requests import STRATA, WIDTH, Requests, add_up, draw_arrivals, serve
from bench.simulation.trials.worlds import Candidate, World
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
from specdecode_operator.trial.strategies.looks import REST_LOOK_S

FIRST_BOUNDS_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
INTER_BOUNDS_S = (0.002, 0.003, 0.004, 0.006, 0.008, 0.012, 0.016, 0.024)
WARM_UP_S = 60.0
PARTS_S = (300.0, 1500.0, 1800.0, 3600.0)
"""Lengths of the first parts that a trial is drawn in; the last one is repeated."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How arms take turns: on the same pods by table, or by a restart of all pods.

    Pods restart one after the other, each in `start_s`; 0: they do not. A restart and the warm-up
    are the washout.
    """

    name: str
    pods: int
    hours_s: float = 7200.0
    block_s: float = 60.0
    washout_s: float = 10.0
    start_s: float = 0.0

    @property
    def is_restart(self) -> bool:
        """Whether all pods restart between turns."""
        return self.start_s > 0.0

    @property
    def pair_s(self) -> float:
        """Mean length of a pair; a block by restart is never shortened, so it is longer."""
        stretch = 2.0 - SHORTEST if self.is_restart else 1.0
        return 2.0 * (self.washout_s + stretch * self.block_s)


def in_turns(pods: int) -> Arrangement:
    """Turns by table, as `Hot` trials have them."""
    return Arrangement("switchback" if pods == 1 else "crossover", pods)


def by_restart(pods: int, start_s: float = 30.0) -> Arrangement:
    """Turns by a restart: blocks of ten times the start, six hours."""
    return Arrangement(
        "switchback_by_restart",
        pods,
        hours_s=6 * 3600.0,
        block_s=10.0 * start_s,
        washout_s=pods * start_s + WARM_UP_S,
        start_s=start_s,
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

    @property
    def pair_ends_s(self) -> NDArray[np.float64]:
        """Ends of the pairs, in seconds."""
        return self.ends_s[1::2]

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
class OpenPair:
    """What is known of a pair that runs at a look."""

    at_s: float
    pair: int
    counts: Counts
    served: int
    """Requests of the candidate so far, washouts included."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A trial so far: complete pairs, and looks at early pairs while they run."""

    evidence: TurnEvidence
    pair_ends_s: NDArray[np.float64]
    open_pairs: tuple[OpenPair, ...]
    served: NDArray[np.int64]  # by the candidate until the end of each pair, washouts included
    is_complete: bool


def watch(
    world: World, candidate: Candidate, plan: Arrangement, rng: np.random.Generator
) -> Iterator[Seen]:
    """Draw a trial, part by part; each item has all pairs that are complete by then."""
    line = Timeline(int(rng.integers(2**31)), plan)
    around = draw_environment(world, plan.pods, plan.hours_s, plan.pair_s, rng)
    turns, slots = len(line.ends_s), len(around.load)
    is_new, takes_part = line.runs_candidate(), line.takes_part()
    pairs, closed = np.zeros((turns // 2, WIDTH), np.int64), tuple[Counts, ...]()
    looks = _OpenLooks(line)
    served = np.zeros(turns // 2 + 1, np.int64)
    tails, slow_s = Tails(), (0.0, 0.0)
    for part in _parts(slots):
        arrivals = draw_arrivals(around, part, rng)
        turn = np.searchsorted(line.ends_s, arrivals.at_s)
        at = turn, arrivals.pod
        seen = serve(world, candidate, around, arrivals, is_new[at], turn, rng)
        served += np.bincount(turn[seen.is_new] // 2, minlength=len(served))
        is_counted = takes_part[at] & (arrivals.at_s >= line.counts_from_s[turn])
        counted = seen.where(is_counted)
        if part.start == 0:
            tails, slow_s = _tails(counted)
        looks.add(seen, arrivals.at_s, is_counted, slow_s)
        _add_pairs(pairs, counted, slow_s)
        complete = int(np.searchsorted(line.pair_ends_s, part.stop * SLOT_S, side="right"))
        closed += tuple(map(tuple, pairs[len(closed) : complete].tolist()))
        evidence = TurnEvidence(STRATA, tails, closed)
        is_complete = part.stop == slots
        yield Seen(evidence, line.pair_ends_s, looks.known(), np.cumsum(served), is_complete)


class _OpenLooks:
    """Adds up early pairs until each look at them while they run.

    In turns there is one, at the end of the first turn; by restart one a minute while a block
    counts, as the operator looks after the first pair.
    """

    def __init__(self, line: Timeline) -> None:
        looks = list(_open_looks(line))
        self._at_s = np.array([at_s for at_s, _ in looks])
        self._pair = np.array([pair for _, pair in looks])
        self._counts = np.zeros((len(looks), WIDTH), np.int64)
        self._served = np.zeros(len(looks), np.int64)

    def add(
        self,
        seen: Requests,
        at_s: NDArray[np.float64],
        is_counted: NDArray[np.bool_],
        slow_s: tuple[float, float],
    ) -> None:
        """Add requests to the looks after them; `seen.group` is the turn."""
        look = np.searchsorted(self._at_s, at_s)
        is_early = look < len(self._at_s)
        self._served += np.bincount(look[is_early & seen.is_new], minlength=len(self._served))
        own = np.zeros(len(look), np.int64)
        own[is_early] = self._pair[look[is_early]]
        kept = is_early & is_counted & (own == seen.group // 2)
        self._counts += add_up(replace(seen, group=look).where(kept), len(self._counts), slow_s)

    def known(self) -> tuple[OpenPair, ...]:
        """What each look knows; of looks after the part that was drawn last, too little."""
        totals = self._counts.copy()
        for at in range(1, len(totals)):
            if self._pair[at] == self._pair[at - 1]:
                totals[at] += totals[at - 1]
        rows = zip(
            self._at_s.tolist(),
            self._pair.tolist(),
            totals.tolist(),
            np.cumsum(self._served).tolist(),
            strict=True,
        )
        return tuple(OpenPair(at_s, pair, tuple(row), served) for at_s, pair, row, served in rows)


def _open_looks(line: Timeline) -> Iterator[tuple[float, int]]:
    """Time and pair of each look at an open pair."""
    for turn in range(min(2 * PAIRS, len(line.ends_s))):
        begin_s, end_s = float(line.counts_from_s[turn]), float(line.ends_s[turn])
        if line.arrangement.is_restart:
            yield from ((at_s, turn // 2) for at_s in np.arange(begin_s, end_s, REST_LOOK_S)[1:])
        if turn % 2 == 0:
            yield end_s, turn // 2


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
    pairs[low:high] += add_up(replace(seen, group=pair - low), high - low, slow_s)


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
