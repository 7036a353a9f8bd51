"""What happens around a trial, and the candidates that are tried."""

from dataclasses import dataclass

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
    World("periodic", burst=4.0, period_s=240.0),
    World("mix", content=(2.4, 4.2)),
    World("mix_by_pod", content=(3.0, 3.6), is_sticky=True),
    World("ar1", drift=0.2, drift_s=300.0),
    World("pareto", pareto=1.3),
)

DISTURBED = World("disturbed", level=0.25, slowdown=3.0)
"""A machine that is not the engines' alone: all pods are three times as slow for a turn or so."""


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
