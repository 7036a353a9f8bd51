"""The first pair of a switchback by restart, at looks for early alarms.

The pods restart one after the other, and each answers requests of its block from its start on. What
the pods answered just before the first block stands in for the baseline until the pair is complete.
Whole trials (`trials`) are drawn apart from these and have looks once a minute.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bench.simulation.trials.environment import draw_environment
from bench.simulation.trials.pods import by_stratum, early_looks_s, sums_by_stratum
from bench.simulation.trials.requests import Requests, draw_arrivals, serve
from bench.simulation.trials.traffic import Arrangement
from bench.simulation.trials.trials import End
from bench.simulation.trials.worlds import EQUAL, Candidate, World
from specdecode_operator.judge.evidence import ArmEvidence, Role, pool
from specdecode_operator.judge.guard import Aim, Guard
from specdecode_operator.judge.judge import judge_turns
from specdecode_operator.judge.judgement import Judgement, Verdict
from specdecode_operator.judge.recording import compare_with, observe_open
from specdecode_operator.judge.trial_evidence import TurnEvidence
from specdecode_operator.judge.turns import PROBE_PAIRS, SHORTEST, role_in_turn, turn_stretch
from specdecode_operator.trial.strategies.early_alarms import (
    EARLY,
    KNOWN_REQUESTS,
    KNOWN_S,
    comparable,
    judge_early,
)
from specdecode_operator.trial.strategies.guard import LOOK_S, RESTARTED_PAIRS

HISTORY_S = 3600.0


@dataclass(frozen=True, slots=True)
class Block:
    """Times of a block in seconds: its first restart, when it counts, and its end."""

    role: Role
    began_s: float
    counts_from_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Answered:
    """What is known at each look. `before` is the baseline just before the pair."""

    history: ArmEvidence
    before: ArmEvidence
    early: tuple[ArmEvidence, ...]
    """Of the candidate, since its pods serve."""
    counted: tuple[tuple[ArmEvidence, ArmEvidence], ...]
    """Of the baseline and of the candidate, while their blocks count."""


def draw_history(world: World, plan: Arrangement, rng: np.random.Generator) -> ArmEvidence:
    """What the pods in force have answered since they started, an hour before the trial."""
    around = draw_environment(world, plan.pods, HISTORY_S, plan.pair_s, rng)
    arrivals = draw_arrivals(around, slice(0, len(around.load)), rng)
    nobody = np.zeros(len(arrivals.pod), np.bool_)
    together = np.zeros(len(arrivals.pod), np.int64)
    seen = serve(world, EQUAL, around, arrivals, nobody, together, rng)
    (history,) = known_at_looks(seen, 1)
    return history


def alarm_in_first_pair(
    world: World,
    candidate: Candidate,
    plan: Arrangement,
    history: ArmEvidence,
    aim: Aim,
    rng: np.random.Generator,
) -> End | None:
    """The end of the trial by an alarm before the first pair is complete; None without one."""
    blocks = _blocks(plan, int(rng.integers(2**31)))
    own = next(block for block in blocks if block.role is Role.CANDIDATE)
    around = draw_environment(world, plan.pods, blocks[-1].end_s, plan.pair_s, rng)
    arrivals = draw_arrivals(around, slice(0, len(around.load)), rng)
    delay_s = plan.start_s * (arrivals.pod + 1.0)  # of the restart of each pod
    began_s = own.began_s + delay_s
    ends_s = own.end_s + delay_s if own is blocks[0] else np.full(len(delay_s), own.end_s)
    is_new = (arrivals.at_s >= began_s) & (arrivals.at_s < ends_s)
    seen = serve(world, candidate, around, arrivals, is_new, arrivals.pod, rng)
    new_s = np.sort(arrivals.at_s[is_new])
    looks_s = _looks_s(own.began_s + plan.start_s, own, blocks[1].end_s, new_s)
    known = _answered(seen, arrivals.at_s, is_new, blocks, looks_s, history)
    guard = Guard(aim=aim, max_duration_s=plan.hours_s, fallen_pairs=RESTARTED_PAIRS)
    start_s = blocks[0].began_s
    for at, at_s in enumerate(looks_s.tolist()):
        if _judge(known, at, at_s < own.counts_from_s, guard, at_s - start_s).reason == EARLY:
            requests = int(np.searchsorted(new_s, at_s))
            return End(Verdict.ROLL_BACK, EARLY, at_s - start_s, requests)
    return None


def _blocks(plan: Arrangement, seed: int) -> tuple[Block, Block]:
    """Both blocks of the pair, after what is counted before them."""
    length_s = plan.block_s * (1.0 + turn_stretch(seed, PROBE_PAIRS) - SHORTEST)
    first, second = (role_in_turn(seed, 0, turn, 0) for turn in range(2))
    border_s = KNOWN_S + plan.washout_s + length_s
    end_s = border_s + plan.washout_s + length_s
    return (
        Block(first, KNOWN_S, KNOWN_S + plan.washout_s, border_s),
        Block(second, border_s, border_s + plan.washout_s, end_s),
    )


def _looks_s(
    first_s: float, own: Block, end_s: float, served_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """From the first pod of the candidate on; what it answered is counted again with its block."""
    early = early_looks_s(first_s, own.counts_from_s, served_s)
    counted = early_looks_s(own.counts_from_s, own.end_s, served_s)
    return np.concatenate([early, counted, np.arange(own.end_s, end_s, LOOK_S)[1:]])


def _judge(known: Answered, at: int, is_early: bool, guard: Guard, elapsed_s: float) -> Judgement:
    """Judge as `early_alarms` does before the candidate's block counts, and as `restarts` after."""
    baseline, candidate = known.counted[at]
    baseline = pool((known.before, baseline))
    if is_early:
        pair = comparable(baseline, [known.early[at]])
        return judge_early(pair, known.history, guard, elapsed_s)
    evidence = observe_open(TurnEvidence(), baseline, candidate)
    return judge_turns(compare_with(evidence, known.history), guard, elapsed_s)


def _answered(
    seen: Requests,
    at_s: NDArray[np.float64],
    is_new: NDArray[np.bool_],
    blocks: tuple[Block, Block],
    looks_s: NDArray[np.float64],
    history: ArmEvidence,
) -> Answered:
    look = np.searchsorted(looks_s, at_s)
    is_seen = look < len(looks_s)
    counts = {
        block.role: is_seen & (at_s >= block.counts_from_s) & (at_s < block.end_s)
        for block in blocks
    }
    early, old, new = (
        tuple(known_at_looks(replace(seen, group=look).where(kept), len(looks_s)))
        for kept in (is_seen & is_new, counts[Role.BASELINE], counts[Role.CANDIDATE])
    )
    together = replace(seen, group=np.zeros_like(seen.group))
    (before,) = known_at_looks(_just_before(together, at_s), 1)
    return Answered(history, before, early, tuple(zip(old, new, strict=True)))


def _just_before(seen: Requests, at_s: NDArray[np.float64]) -> Requests:
    """What is counted before the first block: enough requests, or as many as there are in time."""
    looks_s = np.arange(LOOK_S, KNOWN_S, LOOK_S)
    enough = looks_s[np.searchsorted(np.sort(at_s), looks_s) >= KNOWN_REQUESTS]
    return seen.where(at_s < (enough[0] if len(enough) else KNOWN_S))


def known_at_looks(seen: Requests, looks: int) -> Iterator[ArmEvidence]:
    """What is known at each look; the group of a request is the first look that it counts at."""
    for sums in np.cumsum(sums_by_stratum(seen, looks), axis=0):
        yield ArmEvidence(strata=by_stratum(sums.tolist()))
