"""One cell of the matrix: a world and a number of pods, over many trials."""

import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from bench.simulation.trials.first_pair import alarm_in_first_pair, draw_history
from bench.simulation.trials.pods import run_on_pods
from bench.simulation.trials.traffic import by_restart, in_turns
from bench.simulation.trials.trials import End, run_in_turns
from bench.simulation.trials.worlds import (
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
    """Some trials of one case of one cell: `runs` of them, from number `first` on."""

    kind: Kind
    world: World
    pods: int
    case: Case
    seed: int
    runs: int
    first: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Verdicts and reasons by name, and length and candidate's requests of each trial."""

    verdicts: Mapping[str, int]
    reasons: Mapping[str, int]
    minutes: tuple[float, ...]
    requests: tuple[int, ...]

    @property
    def runs(self) -> int:
        """Number of trials."""
        return len(self.minutes)

    def count(self, verdict: Verdict) -> int:
        """Trials with this verdict."""
        return self.verdicts.get(verdict.value, 0)

    def share(self, verdict: Verdict) -> float:
        """Share of trials with this verdict."""
        return self.count(verdict) / self.runs

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(
            dict(Counter(self.verdicts) + Counter(other.verdicts)),
            dict(Counter(self.reasons) + Counter(other.reasons)),
            self.minutes + other.minutes,
            self.requests + other.requests,
        )


def run_task(task: Task) -> Outcome:
    """Run all trials of a task; each depends on the seed, its number and what is run only."""
    name = zlib.crc32(f"{task.kind} {task.world.name} {task.pods} {task.case.name}".encode())
    numbers = range(task.first, task.first + task.runs)
    return summarize(
        [_run(task, np.random.default_rng([task.seed, name, number])) for number in numbers]
    )


def _run(task: Task, rng: np.random.Generator) -> End:
    case = task.case
    return run_trial(task.kind, task.world, case.candidate, task.pods, case.aim, rng)


def run_trial(
    kind: Kind, world: World, candidate: Candidate, pods: int, aim: Aim, rng: np.random.Generator
) -> End:
    """Draw and judge a trial; by restart, the first pair is drawn twice."""
    if kind is Kind.SEPARATE_PODS:
        return run_on_pods(world, candidate, pods, aim, rng)
    if kind is Kind.TURNS:
        return run_in_turns(world, candidate, in_turns(pods), aim, rng)
    plan = by_restart(pods)
    history = draw_history(world, plan, rng)
    alarm = alarm_in_first_pair(world, candidate, plan, history, aim, rng)
    return alarm or run_in_turns(world, candidate, plan, aim, rng, history)


def summarize(ends: list[End]) -> Outcome:
    """Count verdicts and reasons."""
    return Outcome(
        verdicts=dict(Counter(end.verdict.value for end in ends)),
        reasons=dict(Counter(end.reason for end in ends)),
        minutes=tuple(round(end.elapsed_s / 60.0, 1) for end in ends),
        requests=tuple(end.candidate_requests for end in ends),
    )


NOTHING = Outcome({}, {}, (), ())


def arrangement(kind: Kind, pods: int) -> str:
    """The name of an arrangement; separate pods are half of `pods` for each arm."""
    if kind is Kind.TURNS:
        return "switchback" if pods == 1 else "crossover"
    return "switchback by restart" if kind is Kind.RESTART else "separate pods"


def cell(kind: Kind, world: World, pods: int, found: Mapping[str, Outcome]) -> dict[str, object]:
    """The figures of a cell; None for what has not run. `minutes` and `reasons`: of equal arms.

    `cannot_tell`: a real effect, 10 % in a nasty world, is undecided.
    """
    equal = found.get("equal", NOTHING)
    loss, gain = ("loss_10pct", "gain_10pct") if world.is_nasty else ("loss_3pct", "gain_5pct")
    undecided = [_share(found, name, Verdict.INCONCLUSIVE) for name in (loss, gain)]
    known = [share for share in undecided if share is not None]
    broken = found.get("broken", NOTHING)
    return {
        "arrangement": arrangement(kind, pods),
        "n": equal.runs,
        "false_rollback": _share(found, "equal", Verdict.ROLL_BACK),
        "false_rollback_upper": _upper(equal, Verdict.ROLL_BACK),
        "false_promote": _share(found, "equal", Verdict.PROMOTE),
        "false_promote_upper": _upper(equal, Verdict.PROMOTE),
        "cannot_tell": round(sum(known) / 2.0, 4) if len(known) == 2 else None,
        **{
            f"{case.name}_{'found' if case.right is Verdict.ROLL_BACK else 'promoted'}": _share(
                found, case.name, case.right
            )
            for case in CASES[2:6]
        },
        "equal_edit_promoted": _share(found, "equal_edit", Verdict.PROMOTE),
        "equal_edit_rolled_back": _share(found, "equal_edit", Verdict.ROLL_BACK),
        "broken_requests": _requests(broken, 0.5),
        "broken_requests_90": _requests(broken, 0.9),
        "power_n": {case.name: found.get(case.name, NOTHING).runs for case in CASES[1:]},
        "minutes": round(float(np.median(equal.minutes))) if equal.runs else None,
        "reasons": dict(sorted(equal.reasons.items())),
    }


def _share(found: Mapping[str, Outcome], case: str, verdict: Verdict) -> float | None:
    outcome = found.get(case, NOTHING)
    return round(outcome.share(verdict), 4) if outcome.runs else None


def _requests(found: Outcome, quantile: float) -> int | None:
    return round(float(np.quantile(found.requests, quantile))) if found.runs else None


def _upper(found: Outcome, verdict: Verdict) -> float | None:
    """Upper end of Wilson's 95 % interval of a share."""
    return round(wilson(found.count(verdict), found.runs), 4) if found.runs else None


def wilson(count: int, runs: int) -> float:
    """Upper end of Wilson's 95 % interval of `count` among `runs`."""
    share, square = count / runs, Z_95**2
    centre = share + square / (2 * runs)
    away = Z_95 * float(np.sqrt(share * (1 - share) / runs + square / (4 * runs**2)))
    return (centre + away) / (1 + square / runs)
