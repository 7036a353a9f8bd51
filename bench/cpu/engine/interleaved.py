"""Several engines under the same load, one after the other within each repeat."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tqdm import tqdm

from specdecode_engine.engine import EngineCore

Run = Callable[[EngineCore, int], float]
"""Serves a load that follows from a seed; tokens per second of processor time."""


@dataclass(frozen=True, slots=True)
class Learner:
    """The engine that learns, and the steps it gets for that before anything is measured."""

    config: int | str
    rounds: int


@dataclass(frozen=True, slots=True)
class Rates:
    """What each engine reached, repeat by repeat."""

    by_config: Mapping[int | str, list[float]]

    def best(self, configs: tuple[int, ...]) -> int:
        """Return the one with the greatest median."""
        return max(configs, key=lambda config: statistics.median(self.by_config[config]))

    def ratio(self, own: int | str, other: int | str) -> float:
        """Median of the ratios within each repeat."""
        pairs = zip(self.by_config[own], self.by_config[other], strict=True)
        return round(statistics.median(a / b for a, b in pairs), 3)

    def medians(self) -> dict[str, float]:
        """Return them under names for the results."""
        return {
            f"tokens_per_cpu_second {config}": round(statistics.median(rates), 1)
            for config, rates in self.by_config.items()
        }


def interleave(
    cores: Mapping[int | str, EngineCore], run: Run, repeats: int, learner: Learner, label: str
) -> Rates:
    """Run every engine in every repeat; one more before them warms up.

    The learner serves until it knows the load: what is compared is what it keeps.
    """
    _learn(cores[learner.config], run, learner.rounds)
    rates: dict[int | str, list[float]] = {config: [] for config in cores}
    for repeat in tqdm(range(repeats + 1), desc=label):
        for config, core in cores.items():
            rate = run(core, repeat)
            if repeat:
                rates[config].append(rate)
    return Rates(rates)


def _learn(core: EngineCore, run: Run, rounds: int) -> None:
    seed, goal = -1, core.counters.decode.steps + rounds
    while core.counters.decode.steps < goal:
        run(core, seed)
        seed -= 1
