"""What happens around a trial, and the candidates that are tried."""

from dataclasses import dataclass

import numpy as np

LABELLED = (2.4, 3.4, 4.2)
"""Accept lengths of the classes that are strata of their own."""


@dataclass(frozen=True, slots=True)
class World:
    """Traffic and pods of one kind. Times are in seconds; `dwell` is a mean, exponential."""

    name: str
    is_nasty: bool = True
    burst: float = 1.0  # highest over lowest load
    burst_dwell_s: float = 0.0
    period_s: float = 0.0  # of a load that is high in its first half
    period_pairs: float = 0.0  # the same period, in mean lengths of a pair or window
    wave: float = 1.0  # highest over mean load (squared: over the lowest), sine of 40 minutes
    content: tuple[float, float] | None = None  # accept lengths that no label names
    content_dwell_s: float = 300.0
    is_sticky: bool = False  # content changes by pod, not for the whole fleet
    drift: float = 0.02  # standard deviation of a pod's speed, AR(1)
    drift_s: float = 140.0  # its time constant
    level: float = 1.0  # mean load
    slowdown: float = 1.0  # of the whole machine by other processes, at random
    slow_s: float = 70.0  # dwell in this state
    calm_s: float = 140.0  # and between
    pareto: float = 0.0  # index of the tail of output lengths; 0: exponential


WORLDS = (
    World("steady", is_nasty=False),
    World("wave", is_nasty=False, wave=2.0**0.5),
    World("bursts", burst=4.0, burst_dwell_s=120.0),
    World("periodic", burst=4.0, period_pairs=1.0),
    World("mix", content=(2.4, 4.2)),
    World("mix_by_pod", content=(3.0, 3.6), is_sticky=True),
    World("ar1", drift=0.2, drift_s=300.0),
    World("pareto", pareto=1.3),
)

DISTURBED = World("disturbed", level=0.25, slowdown=3.0)
"""A machine that is not the engines' alone: all pods are three times as slow for a turn or so."""


def draw_world(rng: np.random.Generator) -> World:
    """A mixture of the worlds above, each part present or not, with random parameters."""

    def sometimes(low: float, high: float, otherwise: float) -> float:
        value = float(rng.uniform(low, high))
        return value if rng.random() < 0.5 else otherwise

    def accepts() -> tuple[float, float]:
        return float(rng.uniform(1.2, 5.0)), float(rng.uniform(1.2, 5.0))

    return World(
        "drawn",
        burst=sometimes(1.5, 6.0, 1.0),
        burst_dwell_s=sometimes(20.0, 600.0, 0.0),
        period_s=sometimes(30.0, 600.0, 0.0),
        period_pairs=float(rng.choice([0.0, 0.0, 0.5, 1.0, 2.0])),
        wave=sometimes(1.0, 2.0, 1.0),
        content=accepts() if rng.random() < 0.5 else None,
        content_dwell_s=float(rng.uniform(30.0, 1200.0)),
        is_sticky=bool(rng.random() < 0.5),
        drift=sometimes(0.05, 0.4, 0.02),
        drift_s=float(rng.uniform(20.0, 1200.0)),
        level=sometimes(0.2, 1.2, 1.0),
        slowdown=sometimes(1.5, 4.0, 1.0),
        slow_s=float(rng.uniform(20.0, 300.0)),
        calm_s=float(rng.uniform(20.0, 900.0)),
        pareto=sometimes(1.1, 2.5, 0.0),
    )


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a configuration changes: factors of the time of a step, and of the accept length."""

    name: str
    step_time: float = 1.0
    accept: float = 1.0


EQUAL = Candidate("equal")
LOSS_3, LOSS_10 = Candidate("loss_3pct", step_time=1.03), Candidate("loss_10pct", step_time=1.1)
GAIN_5, GAIN_10 = Candidate("gain_5pct", step_time=0.95), Candidate("gain_10pct", step_time=0.9)
BROKEN = Candidate("broken", step_time=0.75, accept=0.33)
"""Nothing is accepted; an adaptive engine soon drafts less, so its steps become cheaper."""
