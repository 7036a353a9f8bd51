"""The limits of the suite, and what misses them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.shadow_cuda.suite.engines import StepKind
from tests.shadow_cuda.suite.outcome import Outcome

MIN_ENGINES = 40
MIN_MUTANTS = 12
MAX_LOGPROB_DIFF = 1e-5
MAX_WAITS = {
    StepKind.GREEDY: 0,
    StepKind.SAMPLED: 0,
    StepKind.TREE: 0,
    StepKind.JOINING: 0,
    StepKind.GRAMMAR: 1,  # the host reads the draft while the target computes
}
"""Waits of one step beyond that for its result."""
REPORTED_KINDS = (StepKind.GREEDY, StepKind.SAMPLED, StepKind.TREE, StepKind.JOINING)
MAX_LAUNCHES = {"launches_eagle3_b1": 30, "launches_tree2_b1": 45}
"""Kernels, copies and replays of a steady greedy decode step of one request, by figure."""


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches of the step that launched most, and from where."""

    figure: str
    number: int
    places: Counter[str]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that ran."""

    outcomes: Sequence[Outcome]
    launches: Sequence[Launches]
    mutants: dict[str, str]  # what caught each; empty where nothing did
    is_whole: bool = True

    def figures(self) -> dict[str, object]:
        """The last line."""
        caught = sum(bool(by) for by in self.mutants.values())
        return {
            "engines": len({outcome.case.name for outcome in self.outcomes}),
            "violations": sum(len(outcome.violations) for outcome in self.outcomes),
            **{f"waits_{kind}": self._waits(kind) for kind in REPORTED_KINDS},
            **{one.figure: one.number for one in self.launches},
            "logprob_diff": self._logprob_diff(),
            "mutants_caught": f"{caught}/{len(self.mutants)}",
        }

    def misses(self) -> list[str]:
        """What misses a limit, each with its place."""
        found = [f"{one.case.name}: {text}" for one in self.outcomes for text in one.violations]
        for outcome in self.outcomes:
            found += missed_waits(outcome)
            if compiled := outcome.compiles_after_start:
                found.append(f"{outcome.case.name}: compiled after start: {', '.join(compiled)}")
        for one in self.launches:
            if one.number > MAX_LAUNCHES[one.figure]:
                places = ", ".join(
                    f"{count} at {place}" for place, count in one.places.most_common()
                )
                found.append(f"{one.figure} {one.number}: {places}")
        figures = self.figures()
        engines = len({outcome.case.name for outcome in self.outcomes})
        if engines < MIN_ENGINES and self.is_whole:
            found.append(f"engines {engines} at {__file__}")
        if len(self.mutants) < MIN_MUTANTS and self.is_whole:
            found.append(f"mutants {figures['mutants_caught']} at {__file__}")
        if self._logprob_diff() > MAX_LOGPROB_DIFF:
            found.append(f"logprob_diff {self._logprob_diff()} at {__file__}")
        return found + [f"mutant {name} survived" for name, by in self.mutants.items() if not by]

    def _waits(self, kind: StepKind) -> int:
        return max((outcome.max_waits(kind) for outcome in self.outcomes), default=0)

    def _logprob_diff(self) -> float:
        exact = [one.logprob_diff for one in self.outcomes if one.case.dtype == "float32"]
        return max(exact, default=0.0)


def missed_waits(outcome: Outcome) -> list[str]:
    """The steps of a case that waited more often than their kind may, with the places."""
    found = []
    for kind, most in MAX_WAITS.items():
        worst = outcome.worst(kind)
        if worst is not None and worst.waits > most:
            places = Counter(str(wait) for wait in worst.blocking)
            listed = ", ".join(f"{count} {place}" for place, count in places.most_common())
            found.append(
                f"{outcome.case.name}: {worst.waits} waits in a {kind} step of "
                f"{worst.batch_size} requests: {worst.event_waits} events, {listed}"
            )
    return found
