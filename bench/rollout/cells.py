"""One cell of the matrix: a world and a number of pods, over many trials."""

import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from rollout.pods import run_on_pods
from rollout.traffic import by_restart, in_turns
from rollout.trials import End, run_in_turns
from rollout.worlds import (
    BROKEN,
    EQUAL,
    GAIN_5,
    GAIN_10,
    LOSS_3,
    LOSS_10,
    Candidate,
    World,
)
from specdecode_operator.judge.guard import Aim
from specdecode_operator.judge.judgement import Verdict

Z_95 = 1.959964


@dataclass(frozen=True, slots=True)
class Case:
    """What is tried, for which aim, and the verdict that is right."""

    name: str
    candidate: Candidate
    right: Verdict
    aim: Aim = Aim.GAIN


EQUAL_CASE = Case("equal", EQUAL, Verdict.INCONCLUSIVE)
CASES = (
    EQUAL_CASE,
    Case("equal_edit", EQUAL, Verdict.PROMOTE, Aim.NO_LOSS),
    Case("loss_3pct", LOSS_3, Verdict.ROLL_BACK),
    Case("gain_5pct", GAIN_5, Verdict.PROMOTE),
    Case("loss_10pct", LOSS_10, Verdict.ROLL_BACK),
    Case("gain_10pct", GAIN_10, Verdict.PROMOTE),
    Case("broken", BROKEN, Verdict.ROLL_BACK),
)


class Kind(StrEnum):
    """How the arms of a trial are arranged."""

    TURNS = "turns"
    RESTART = "restart"
    SEPARATE_PODS = "separate_pods"


PODS = {Kind.TURNS: (1, 2, 4, 8), Kind.RESTART: (1, 2, 4), Kind.SEPARATE_PODS: (8, 12)}


@dataclass(frozen=True, slots=True)
class Task:
    """One case of one cell."""

    kind: Kind

    world: World
    pods: int
    case: Case
    seed: int
    runs: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Verdicts of one task by name, reasons of all trials, and medians."""

    runs: int
    verdicts: Mapping[str, int]
    reasons: Mapping[str, int]
    minutes: float
    requests: float  # of the candidate, until the verdict

    def share(self, verdict: Verdict) -> float:
        """Share of trials with this verdict."""
        return self.verdicts.get(verdict.value, 0) / self.runs


def run_task(task: Task) -> Outcome:
    """Run all trials of a task; they depend on the seed and on what is run only."""
    name = zlib.crc32(f"{task.kind} {task.world.name} {task.pods} {task.case.name}".encode())
    return summarize(
        [_run(task, np.random.default_rng([task.seed, name, run])) for run in range(task.runs)]
    )


def _run(task: Task, rng: np.random.Generator) -> End:
    world, case = task.world, task.case
    if task.kind is Kind.SEPARATE_PODS:
        return run_on_pods(world, case.candidate, task.pods, case.aim, rng)
    plan = in_turns(task.pods) if task.kind is Kind.TURNS else by_restart(task.pods)
    return run_in_turns(world, case.candidate, plan, case.aim, rng)


def summarize(ends: list[End]) -> Outcome:
    """Count verdicts and reasons."""
    return Outcome(
        runs=len(ends),
        verdicts=dict(Counter(end.verdict.value for end in ends)),
        reasons=dict(Counter(end.reason for end in ends)),
        minutes=float(np.median([end.elapsed_s for end in ends])) / 60.0,
        requests=float(np.median([end.candidate_requests for end in ends])),
    )


def arrangement(kind: Kind, pods: int) -> str:
    """The name of an arrangement; separate pods are half of `pods` for each arm."""
    if kind is Kind.TURNS:
        return "switchback" if pods == 1 else "crossover"
    return "switchback by restart" if kind is Kind.RESTART else "separate pods"


def cell(kind: Kind, world: World, pods: int, found: Mapping[str, Outcome]) -> dict[str, object]:
    """The figures of a cell. `minutes` and `reasons`: of equal arms.

    `cannot_tell`: a real effect, 10 % in a nasty world, is undecided.
    """
    equal, edit = found["equal"], found["equal_edit"]
    loss, gain = ("loss_10pct", "gain_10pct") if world.is_nasty else ("loss_3pct", "gain_5pct")
    undecided = [found[name].share(Verdict.INCONCLUSIVE) for name in (loss, gain)]
    return {
        "arrangement": arrangement(kind, pods),
        "n": equal.runs,
        "false_rollback": round(equal.share(Verdict.ROLL_BACK), 4),
        "false_rollback_upper": round(wilson_upper(equal, Verdict.ROLL_BACK), 4),
        "false_promote": round(equal.share(Verdict.PROMOTE), 4),
        "false_promote_upper": round(wilson_upper(equal, Verdict.PROMOTE), 4),
        "cannot_tell": round(sum(undecided) / 2.0, 4),
        **{
            f"{case.name}_{'found' if case.right is Verdict.ROLL_BACK else 'promoted'}": round(
                found[case.name].share(case.right), 4
            )
            for case in CASES[2:6]
        },
        "equal_edit_promoted": round(edit.share(Verdict.PROMOTE), 4),
        "equal_edit_rolled_back": round(edit.share(Verdict.ROLL_BACK), 4),
        "broken_requests": round(found["broken"].requests),
        "power_n": found[loss].runs,
        "minutes": round(equal.minutes),
        "reasons": dict(sorted(equal.reasons.items())),
    }


def wilson_upper(found: Outcome, verdict: Verdict) -> float:
    """Upper end of Wilson's 95 % interval of a share."""
    return wilson(found.verdicts.get(verdict.value, 0), found.runs)


def wilson(count: int, runs: int) -> float:
    """Upper end of Wilson's 95 % interval of `count` among `runs`."""
    share, square = count / runs, Z_95**2
    centre = share + square / (2 * runs)
    away = Z_95 * float(np.sqrt(share * (1 - share) / runs + square / (4 * runs**2)))
    return (centre + away) / (1 + square / runs)
