"""One cell of the matrix: a world and a number of pods, over many trials."""

import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rollout.traffic import in_turns
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


@dataclass(frozen=True, slots=True)
class Task:
    """One case of one cell."""

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
    """Run all trials of a task; they depend on the seed, the world, the pods and the case only."""
    name = zlib.crc32(f"{task.world.name} {task.pods} {task.case.name}".encode())
    ends = [
        run_in_turns(
            task.world,
            task.case.candidate,
            in_turns(task.pods),
            task.case.aim,
            np.random.default_rng([task.seed, name, run]),
        )
        for run in range(task.runs)
    ]
    return summarize(ends)


def summarize(ends: list[End]) -> Outcome:
    """Count verdicts and reasons."""
    return Outcome(
        runs=len(ends),
        verdicts=dict(Counter(end.verdict.value for end in ends)),
        reasons=dict(Counter(end.reason for end in ends)),
        minutes=float(np.median([end.elapsed_s for end in ends])) / 60.0,
        requests=float(np.median([end.candidate_requests for end in ends])),
    )


def cell(world: World, pods: int, found: Mapping[str, Outcome]) -> dict[str, object]:
    """The figures of a cell. `cannot_tell`: a real effect (10 % in a nasty world) undecided."""
    equal, edit = found["equal"], found["equal_edit"]
    loss, gain = ("loss_10pct", "gain_10pct") if world.is_nasty else ("loss_3pct", "gain_5pct")
    undecided = [found[name].share(Verdict.INCONCLUSIVE) for name in (loss, gain)]
    return {
        "arrangement": "switchback" if pods == 1 else "crossover",
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
