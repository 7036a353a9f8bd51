"""Trials with arms on separate pods of an invented fleet; half of the pods run the candidate.

All of them start with the trial, and other pods, which have served before, serve on. Until all have
started these are the baseline of early alarms, then the fresh ones are. Measuring begins after the
warm-up.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.simulation.trials.environment import SLOT_S, Environment, draw_environment
from bench.simulation.trials.requests import STRATA, Requests, draw_arrivals, serve
from bench.simulation.trials.traffic import FIRST_BOUNDS_S, WARM_UP_S
from bench.simulation.trials.trials import ENDS, End
from bench.simulation.trials.worlds import Candidate, World
from specdecode_operator.judge.evidence import ArmEvidence, Latencies, RequestSums, Role, Stratum
from specdecode_operator.judge.guard import Aim, Guard
from specdecode_operator.judge.judge import judge_pods
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.judge.recording import close_window
from specdecode_operator.judge.separate_pods import are_apart
from specdecode_operator.judge.trial_evidence import Cell, PodEvidence
from specdecode_operator.trial.strategies.early_alarms import EARLY_LOOK_S, EARLY_REQUESTS
from specdecode_operator.trial.strategies.guard import LOOK_S
from specdecode_operator.trial.strategies.looks import REST_LOOK_S

HOURS_S, WINDOW_S, WINDOWS = 7200.0, 300.0, 24
START_S = (30.0, 60.0)
"""Least and longest time in which a pod starts."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Pods by their columns in the environment: old ones, fresh ones, and the candidate's."""

    starts_s: NDArray[np.float64]
    """When each pod serves; the old ones do from the begin on."""

    @property
    def arm(self) -> int:
        """Pods of each kind."""
        return len(self.starts_s) // 3

    @property
    def all_serve_s(self) -> float:
        """When the last pod serves."""
        return float(self.starts_s.max())

    @property
    def measured_from_s(self) -> float:
        """End of the warm-up, at the end of a slot."""
        return float(np.ceil((self.all_serve_s + WARM_UP_S) / SLOT_S) * SLOT_S)

    def role(self, pod: int) -> Role:
        """Which configuration a pod runs."""
        return Role.CANDIDATE if pod >= 2 * self.arm else Role.BASELINE


def run_on_pods(
    world: World, candidate: Candidate, pods: int, aim: Aim, rng: np.random.Generator
) -> End:
    """Draw and judge a trial until its end."""
    arm = pods // 2
    fleet = Fleet(np.concatenate([np.zeros(arm), rng.uniform(*START_S, 2 * arm)]))
    length_s = fleet.measured_from_s + HOURS_S
    around = draw_environment(world, 3 * arm, length_s, WINDOW_S, rng)
    guard = Guard(aim=aim, max_duration_s=HOURS_S)
    trial = _Trial(world, candidate, fleet, around, guard, rng)
    return trial.watch_warm_up() or trial.measure()


@dataclass(slots=True)
class _Trial:
    """A trial that is drawn and judged; `served` counts requests of the candidate so far."""

    world: World
    candidate: Candidate
    fleet: Fleet
    around: Environment
    guard: Guard
    rng: np.random.Generator
    served: int = 0

    def watch_warm_up(self) -> End | None:
        """The end by an alarm before anything is measured; None without one."""
        fleet = self.fleet
        seen, at_s = self._serve(0.0, fleet.measured_from_s)
        first_s = float(fleet.starts_s[2 * fleet.arm :].min())
        looks_s = early_looks_s(first_s, fleet.measured_from_s, at_s[seen.is_new])
        is_old = seen.group < fleet.arm
        for look_s in looks_s.tolist():
            # What is known of fresh pods is read when all of them serve.
            known = at_s < np.where(is_old, min(look_s, fleet.all_serve_s), look_s)
            if look_s < fleet.all_serve_s:
                known &= is_old | seen.is_new
            if end := self._alarm(PodEvidence(), 0, seen.where(known), look_s):
                return end
        self.served = int(seen.is_new.sum())
        return None

    def measure(self) -> End:
        """Judge at window ends, and in between if an alarm is possible."""
        evidence, begin_s = PodEvidence(), self.fleet.measured_from_s
        for number in range(WINDOWS):
            seen, at_s = self._serve(begin_s, begin_s + WINDOW_S)
            is_measured = seen.group >= self.fleet.arm
            seen, at_s = seen.where(is_measured), at_s[is_measured]
            for look_s in self._looks_s(number, begin_s, at_s[seen.is_new]):
                if end := self._alarm(evidence, number, seen.where(at_s < look_s), look_s):
                    return end
            begin_s += WINDOW_S
            evidence = close_window(evidence, number, self._arms(seen))
            self.served += int(seen.is_new.sum())
            judgement = judge_pods(evidence, self.guard, (number + 1) * WINDOW_S)
            if judgement.verdict in ENDS:
                return End(judgement.verdict, judgement.reason, begin_s, self.served)
        return End(Verdict.INCONCLUSIVE, "OutOfTime", begin_s, self.served)

    def _serve(self, begin_s: float, end_s: float) -> tuple[Requests, NDArray[np.float64]]:
        """Requests that arrive in this time, and when; the group is the pod."""
        slots = slice(round(begin_s / SLOT_S), round(end_s / SLOT_S))
        arrivals = draw_arrivals(self.around, slots, self.rng)
        is_new = arrivals.pod >= 2 * self.fleet.arm
        seen = serve(
            self.world, self.candidate, self.around, arrivals, is_new, arrivals.pod, self.rng
        )
        does_serve = arrivals.at_s >= self.fleet.starts_s[arrivals.pod]
        return seen.where(does_serve), arrivals.at_s[does_serve]

    def _looks_s(
        self, number: int, begin_s: float, served_s: NDArray[np.float64]
    ) -> Iterator[float]:
        """Looks within a window."""
        end_s = begin_s + WINDOW_S
        if number == 0:
            yield from early_looks_s(begin_s, end_s, served_s).tolist()[:-1]
        else:
            yield from np.arange(begin_s, end_s, REST_LOOK_S).tolist()[1:]

    def _alarm(
        self, evidence: PodEvidence, number: int, known: Requests, at_s: float
    ) -> End | None:
        """The end at a look within a window; the judge runs only where an alarm is possible.

        Too few requests fail in any world to be certain of it.
        """
        before = {each.pod: each.sums for each in evidence.pods}
        sums = self._sums_by_pod(known, before)
        if not are_apart((self.fleet.role(pod), cell) for pod, cell in sums.items()):
            return None
        seen = close_window(evidence, number, self._arms(known))
        judgement = judge_pods(seen, self.guard, at_s)
        if judgement.verdict is not Verdict.ROLL_BACK:
            return None
        requests = self.served + int(known.is_new.sum())
        return End(judgement.verdict, judgement.reason, at_s, requests)

    def _sums_by_pod(self, known: Requests, before: Mapping[str, Cell]) -> dict[int, Cell]:
        columns = (None, known.tokens, known.seconds * 1e6, known.steps)
        pods = len(self.fleet.starts_s)
        rows = np.stack([np.bincount(known.group, column, pods) for column in columns], -1)
        return {
            pod: Cell(*map(sum, zip(row, before.get(f"pod-{pod}", Cell()), strict=True)))
            for pod, row in enumerate(np.rint(rows).astype(int).tolist())
        }

    def _arms(self, seen: Requests) -> dict[str, tuple[Role, ArmEvidence]]:
        found = enumerate(arms_of(seen, len(self.fleet.starts_s)))
        return {f"pod-{pod}": (self.fleet.role(pod), arm) for pod, arm in found if arm.strata}


def early_looks_s(
    begin_s: float, end_s: float, served_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """When the operator looks while no pair or window is complete, until the end, in seconds.

    Args:
        begin_s: when the first pod of the candidate serves, or what is counted begins.
        served_s: when the candidate answered its requests.
    """
    own_s = np.sort(served_s[served_s >= begin_s])
    enough_s = own_s[EARLY_REQUESTS - 1] if len(own_s) >= EARLY_REQUESTS else np.inf
    looks_s = [begin_s]
    while looks_s[-1] < end_s:
        period_s = EARLY_LOOK_S if looks_s[-1] < enough_s else LOOK_S
        looks_s.append(min(end_s, looks_s[-1] + period_s))
    return np.array(looks_s[1:])


def arms_of(seen: Requests, groups: int) -> list[ArmEvidence]:
    """The requests of each group as evidence."""
    rows = zip(
        sums_by_stratum(seen, groups).tolist(),
        latencies_by_group(seen, groups),
        np.bincount(seen.group, None, groups).tolist(),
        np.bincount(seen.group, seen.failed, groups).tolist(),
        strict=True,
    )
    return [
        ArmEvidence(
            strata=by_stratum(sums),
            first_token=first_token,
            answered_requests=count - failed,
            failed_requests=failed,
            pods=1,
        )
        for sums, first_token, count, failed in rows
    ]


def sums_by_stratum(seen: Requests, groups: int) -> NDArray[np.float64]:
    """The fields of `RequestSums`, [groups, strata, fields]."""
    at, cells = seen.group * len(STRATA) + seen.stratum, groups * len(STRATA)
    columns = (None, seen.tokens, seen.steps, seen.seconds)
    sums = np.stack([np.bincount(at, column, cells) for column in columns], -1)
    return np.asarray(sums.reshape(groups, len(STRATA), len(columns)), np.float64)


def by_stratum(sums: list[list[float]]) -> dict[Stratum, RequestSums]:
    """Sums of one group, [strata, fields]."""
    rows = zip(STRATA, sums, strict=True)
    return {stratum: RequestSums(*row) for stratum, row in rows if row[0]}


def latencies_by_group(seen: Requests, groups: int) -> list[Latencies]:
    """Times to first token of each group."""
    buckets = len(FIRST_BOUNDS_S) + 1
    at = seen.group * buckets + np.searchsorted(FIRST_BOUNDS_S, seen.first_s)
    counts = np.bincount(at, None, groups * buckets).astype(float).reshape(groups, buckets)
    sums_s = np.bincount(seen.group, seen.first_s, groups)
    return [
        Latencies(FIRST_BOUNDS_S, tuple(row), sum_s)
        for row, sum_s in zip(counts.tolist(), sums_s.tolist(), strict=True)
    ]
