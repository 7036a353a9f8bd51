"""Two hours of an invented fleet, request by request, as the evidence that the judge is given.

Each pod gets 3.5 requests per second on average. A request's batch follows from load, length and
speed (Little's law), so a slow configuration also runs larger batches; steps take longer in them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout.worlds import HOURS_S, LABELLED, Candidate, World
from specdecode_operator.judge.evidence import Latencies, Role, Stratum
from specdecode_operator.judge.trial_evidence import Tails, TurnEvidence, tail_bound
from specdecode_operator.judge.turns import (
    PROBE_PAIRS,
    pods_in_pair,
    role_in_turn,
    turn_stretch,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SLOT_S = 5.0
SLOTS = int(HOURS_S / SLOT_S)
BLOCK_S, WASHOUT_S = 60.0, 10.0
REQUESTS_PER_S, MEAN_TOKENS = 3.5, 1000.0
MIX = (0.5, 0.3, 0.2)
STEP_S, PER_REQUEST, LARGEST_BATCH = 0.008, 0.02, 64.0
ACCEPT_SPREAD, TIME_SPREAD, BATCH_SPREAD = 0.15, 0.08, 0.25
BANDS = (1, 2, 4, 8, 16, 32, 64)
FIRST_TOKEN_S, FIRST_SPREAD = 0.15, 0.5
FIRST_BOUNDS_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
INTER_BOUNDS_S = (0.002, 0.003, 0.004, 0.006, 0.008, 0.012, 0.016, 0.024)
LONGEST_TOKENS = 200_000.0
FAILED_SHARE = 0.001
LABELS = ("short", "medium", "long")
STRATA = tuple(Stratum(band, "greedy", "free", label) for band in BANDS for label in LABELS)


@dataclass(frozen=True, slots=True)
class Turns:
    """The timeline: pair and turn of each moment, and when turns end, in seconds."""

    seed: int
    pods: int

    def ends_s(self) -> Floats:
        """End of each turn; turns 2n and 2n + 1 are pair n."""
        lengths: list[float] = []
        while sum(lengths) < HOURS_S:
            length = WASHOUT_S + BLOCK_S * turn_stretch(self.seed, len(lengths) // 2)
            lengths += [length, length]
        return np.cumsum(lengths)

    def runs_candidate(self, turns: int) -> NDArray[np.bool_]:
        """[turns, pods]"""
        return np.array(
            [
                [
                    role_in_turn(self.seed, turn // 2, turn % 2, pod) is Role.CANDIDATE
                    and pod < pods_in_pair(turn // 2, self.pods)
                    for pod in range(self.pods)
                ]
                for turn in range(turns)
            ]
        )


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests that count, each in its turn, role (0: baseline) and stratum."""

    turn: Ints
    role: Ints
    stratum: Ints
    tokens: Floats
    seconds: Floats
    steps: Floats
    first_s: Floats
    failed: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Seen:
    """A trial of two hours: its evidence, the looks at turn ends, and the candidate's requests."""

    evidence: TurnEvidence
    ends_s: Floats
    first_turn: tuple[int, ...]
    served: Ints  # by the candidate, until the end of each turn, washout included


def telegraph(dwell_s: float, columns: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """A state that flips after exponential times, [slots, columns]."""
    flips = rng.random((SLOTS, columns)) < -np.expm1(-SLOT_S / dwell_s)
    flipped = np.cumsum(flips, axis=0) + rng.integers(0, 2, columns)
    return np.asarray(flipped % 2 == 1)


def environment(world: World, pods: int, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Load, accept length (0: by class) and speed of each pod, [slots, pods]."""
    at_s = np.arange(SLOTS) * SLOT_S
    load = np.exp(rng.normal(0.0, 0.1, (SLOTS // 12, 1))).repeat(12, axis=0)
    load = (
        load
        * np.exp(np.log(world.wave) * np.sin(2 * np.pi * (at_s / 2400 + rng.random())))[:, None]
    )
    low = 2.0 / (1.0 + world.burst)
    if world.burst_dwell_s:
        load = load * np.where(telegraph(world.burst_dwell_s, pods, rng), low * world.burst, low)
    if world.period_s:
        is_high = (at_s / world.period_s + rng.random()) % 1.0 < 0.5
        load = load * np.where(is_high, low * world.burst, low)[:, None]
    accept = np.zeros((SLOTS, pods))
    if world.content:
        states = telegraph(world.content_dwell_s, pods if world.is_sticky else 1, rng)
        accept = accept + np.where(states, *world.content)
    keep = np.exp(-SLOT_S / world.drift_s)
    steps = rng.normal(0.0, world.drift * np.sqrt(1 - keep**2), (SLOTS, pods))
    steps[0] = rng.normal(0.0, world.drift, pods)
    drift = np.empty_like(steps)
    drift[0] = steps[0]
    for slot in range(1, SLOTS):
        drift[slot] = keep * drift[slot - 1] + steps[slot]
    speed = np.exp(drift + rng.normal(0.0, 0.01, pods) + rng.normal(0.0, 0.02, (SLOTS, pods)))
    return load * np.ones((1, pods)), accept, speed


def run_turns(world: World, candidate: Candidate, pods: int, rng: np.random.Generator) -> Seen:
    """Draw a trial in turns."""
    turns = Turns(int(rng.integers(2**31)), pods)
    ends_s = turns.ends_s()
    is_new = turns.runs_candidate(len(ends_s))
    load, level, speed = environment(world, pods, rng)
    arrivals = rng.poisson(REQUESTS_PER_S * SLOT_S * load)
    slot, pod = (np.repeat(at.ravel(), arrivals.ravel()) for at in np.indices((SLOTS, pods)))
    at_s = (slot + rng.random(len(slot))) * SLOT_S
    turn = np.searchsorted(ends_s, at_s)
    tried = is_new[turn, pod]
    kind = rng.choice(3, len(slot), p=MIX)
    base = np.where(level[slot, pod] > 0.0, level[slot, pod], np.array(LABELLED)[kind])
    accept = base * np.exp(rng.normal(0.0, ACCEPT_SPREAD, len(slot)))
    accept = np.maximum(1.0, np.where(tried, accept * candidate.accept, accept))
    tokens = _lengths(world, len(slot), rng)
    steps = np.maximum(1.0, np.round(tokens / accept))
    step_time = np.where(tried, candidate.step_time, 1.0) * speed[slot, pod]
    typical = np.where(tried, np.maximum(1.0, base * candidate.accept), base)
    busy = REQUESTS_PER_S * load[slot, pod] * MEAN_TOKENS / typical * STEP_S * step_time
    batch = np.minimum(busy / np.maximum(1.0 - PER_REQUEST * busy, 0.1), LARGEST_BATCH)
    seconds = steps * STEP_S * (1.0 + PER_REQUEST * batch) * step_time
    seconds *= np.exp(rng.normal(0.0, TIME_SPREAD, len(slot)))
    first_s = FIRST_TOKEN_S * batch / 12.0 * np.exp(rng.normal(0.0, FIRST_SPREAD, len(slot)))
    own = np.clip(batch * np.exp(rng.normal(0.0, BATCH_SPREAD, len(slot))), 1.0, None)
    band = np.searchsorted(BANDS, own, side="right") - 1
    starts_s = np.concatenate([[0.0], ends_s[:-1]])
    takes_part = pod < np.where(
        turn < 2 * PROBE_PAIRS, pods_in_pair(0, pods), pods_in_pair(PROBE_PAIRS, pods)
    )
    counted = takes_part & (at_s - starts_s[turn] >= WASHOUT_S)
    served = np.cumsum(np.bincount(turn[tried], minlength=len(ends_s)))
    failed = rng.random(len(slot)) < FAILED_SHARE
    requests = Requests(
        turn[counted], tried[counted].astype(np.int64), (band * 3 + kind)[counted],
        tokens[counted], seconds[counted], steps[counted], first_s[counted], failed[counted],
    )  # fmt: skip
    evidence, first_turn = _evidence(requests, len(ends_s))
    return Seen(evidence, ends_s, first_turn, served)


def _lengths(world: World, count: int, rng: np.random.Generator) -> Floats:
    if not world.pareto:
        return 1.0 + rng.exponential(MEAN_TOKENS, count)
    least = MEAN_TOKENS * (world.pareto - 1.0) / world.pareto
    return np.minimum(least * (1.0 + rng.pareto(world.pareto, count)), LONGEST_TOKENS)


def _evidence(seen: Requests, turns: int) -> tuple[TurnEvidence, tuple[int, ...]]:
    """Complete pairs; and the first turn alone, as the running pair."""
    per_token = seen.seconds / seen.tokens
    is_first_pair = seen.turn < 2
    tails = Tails(
        tail_bound(_latencies(seen.first_s[is_first_pair], FIRST_BOUNDS_S)),
        tail_bound(_latencies(per_token[is_first_pair], INTER_BOUNDS_S)),
    )
    slow_first = seen.first_s > np.array([*FIRST_BOUNDS_S, 0.0])[tails.first_token]
    slow_inter = per_token > np.array([*INTER_BOUNDS_S, 0.0])[tails.inter_token]
    ones = np.ones(len(seen.turn))
    rows = (
        ones, seen.first_s * 1e6, slow_first, seen.tokens, slow_inter * seen.tokens, ~seen.failed,
        seen.failed, 0 * ones, 0 * ones, 0 * ones,
    )  # fmt: skip
    first = _flat(seen, rows, np.where(seen.turn == 0, 0, 1), 2)[0]
    complete = _flat(seen, rows, seen.turn // 2, turns // 2)
    return TurnEvidence(strata=STRATA, tails=tails, pairs=tuple(complete)), first


def _flat(
    seen: Requests, rows: Sequence[NDArray[Any]], group: Ints, groups: int
) -> list[tuple[int, ...]]:
    """The arrays of `trial_evidence`, one for each group of requests."""
    cells = (np.ones(len(group)), seen.tokens, seen.seconds * 1e6, seen.steps)
    at_row = group * 2 + seen.role
    at_cell = (group * len(STRATA) + seen.stratum) * 2 + seen.role
    parts = [
        np.stack([np.bincount(at, column, size) for column in columns], -1).reshape(groups, -1)
        for at, columns, size in (
            (at_row, rows, groups * 2),
            (at_cell, cells, groups * len(STRATA) * 2),
        )
    ]
    flat = np.rint(np.concatenate(parts, axis=1)).astype(np.int64)
    return [tuple(each) for each in flat.tolist()]


def _latencies(values_s: Floats, bounds_s: tuple[float, ...]) -> Latencies:
    counts = np.bincount(np.searchsorted(bounds_s, values_s), minlength=len(bounds_s) + 1)
    return Latencies(bounds_s, tuple(counts.astype(float).tolist()), float(values_s.sum()))
