"""What a way of finding out comes to in one scenario, over many runs."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollout.fleet import Seen, run_fleet
from rollout.rules import End
from rollout.scenarios import BROKEN, CANDIDATES, EQUAL, GAIN, LOSS, Candidate, Scenario
from rollout.ways import Way
from specdecode_operator.judge.judgement import Verdict


@dataclass(frozen=True, slots=True)
class Run:
    """One trial: its end, what the candidate had served by then, and what it cost the users."""

    candidate: str
    end: End
    candidate_requests: float
    regret_requests: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Shares of runs, and requests. None: it never came to that."""

    runs: int
    false_rollback: float
    false_promotion: float
    promoted_gain5: float
    caught_loss5: float
    caught_broken: float
    median_requests: float | None
    broken_draft_requests: float | None
    regret_requests: float

    def reported(self) -> dict[str, float | None]:
        """The text of the last line."""
        return {
            "false_rollback": round(self.false_rollback, 4),
            "false_promotion": round(self.false_promotion, 4),
            "promoted_gain5": round(self.promoted_gain5, 4),
            "caught_loss5": round(self.caught_loss5, 4),
            "median_requests": self.median_requests,
            "broken_draft_requests": self.broken_draft_requests,
            "regret_requests": round(self.regret_requests, 1),
        }


def try_all(scenario: Scenario, ways: Sequence[Way], seed: int, runs: int) -> dict[str, Figures]:
    """Run every candidate `runs` times; ways with the same pods see the same fleets."""
    done: dict[str, list[Run]] = {way.name: [] for way in ways}
    for pods in dict.fromkeys(way.pods for way in ways):
        sharing = [way for way in ways if way.pods == pods]
        for candidate in CANDIDATES:
            for run in range(runs):
                rng = np.random.default_rng(
                    [seed, run, _number(scenario.name, candidate.name, pods)]
                )
                arrangement = sharing[0].arrange(int(rng.integers(2**31)))
                seen = run_fleet(scenario, candidate, arrangement, rng)
                for way in sharing:
                    done[way.name].append(_settle(seen, candidate, way.rule(seen)))
    return {name: _summarize(found, runs) for name, found in done.items()}


def _settle(seen: Seen, candidate: Candidate, end: End) -> Run:
    """Charge every request of the two hours what the better configuration would have spared it."""
    requests = seen.requests
    tried = requests * seen.arrangement.candidate
    before, after = requests[: end.slot].sum(), requests[end.slot :].sum()
    served = tried[: end.slot].sum()
    is_promoted = end.verdict is Verdict.PROMOTE
    if candidate.cost > 1.0:
        regret = (candidate.cost - 1.0) * (served + (after if is_promoted else 0.0))
    else:
        regret = (1.0 / candidate.cost - 1.0) * (before - served + (0.0 if is_promoted else after))
    return Run(candidate.name, end, float(served), float(regret))


def _summarize(found: Sequence[Run], runs: int) -> Figures:
    def share(candidate: Candidate, verdict: Verdict) -> float:
        return len(_ended(found, candidate, verdict)) / runs

    costly = [run.regret_requests for run in found if run.candidate != EQUAL.name]
    return Figures(
        runs=runs,
        false_rollback=share(EQUAL, Verdict.ROLL_BACK),
        false_promotion=max(share(EQUAL, Verdict.PROMOTE), share(LOSS, Verdict.PROMOTE)),
        promoted_gain5=share(GAIN, Verdict.PROMOTE),
        caught_loss5=share(LOSS, Verdict.ROLL_BACK),
        caught_broken=share(BROKEN, Verdict.ROLL_BACK),
        median_requests=_median(_ended(found, GAIN, Verdict.PROMOTE)),
        broken_draft_requests=_median(_ended(found, BROKEN, Verdict.ROLL_BACK)),
        regret_requests=float(np.mean(costly)),
    )


def _ended(found: Sequence[Run], candidate: Candidate, verdict: Verdict) -> list[Run]:
    return [run for run in found if run.candidate == candidate.name and run.end.verdict is verdict]


def _median(found: Sequence[Run]) -> float | None:
    """Requests that the candidate had served."""
    return float(np.median([run.candidate_requests for run in found])) if found else None


def _number(*names: str) -> int:
    return zlib.crc32(" ".join(names).encode())
