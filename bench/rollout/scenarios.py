"""What happens around a trial, and the candidates that are tried."""

from dataclasses import dataclass, field

MIX = (0.5, 0.3, 0.2)  # of the classes, by requests
SHIFTED_MIX = (0.56, 0.28, 0.16)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of traffic and of fleet."""

    name: str
    # Mixes of the two halves of the fleet: sessions stay where their prefix is cached.
    mixes: tuple[tuple[float, ...], tuple[float, ...]] = (MIX, MIX)
    mix_drifts: bool = False  # both halves go from one mix to the other and back
    load_swing: float = 1.0  # highest over mean load, by a wave of 40 minutes
    slow_pod: float = 1.0  # factor of the step times of one pod of the fleet


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a configuration does to decode, as factors to the baseline.

    `time_weights` spread the effect over the classes; with the plain mix they keep its mean.
    """

    name: str
    steps_time: float = 1.0
    accept: float = 1.0
    time_weights: tuple[float, ...] = field(default=(1.0, 1.0, 1.0))

    @property
    def cost(self) -> float:
        """Decode seconds per token."""
        return self.steps_time / self.accept


EQUAL = Candidate("equal")
GAIN = Candidate("gain5", steps_time=0.969, accept=1.02, time_weights=(0.9, 1.1, 1.1))
LOSS = Candidate("loss5", steps_time=1.0815, accept=1.03, time_weights=(0.9, 1.1, 1.1))
# Nothing is accepted; an adaptive engine soon drafts less, so its steps become cheaper.
BROKEN = Candidate("broken", steps_time=0.75, accept=0.33)
CANDIDATES = (EQUAL, GAIN, LOSS, BROKEN)


def all_scenarios() -> tuple[Scenario, ...]:
    """The four that are reported."""
    return (
        Scenario("steady"),
        Scenario("mix_shift", mixes=(MIX, SHIFTED_MIX), mix_drifts=True),
        Scenario("load_drift", load_swing=1.8),
        Scenario("slow_pod", slow_pod=1.15),
    )
