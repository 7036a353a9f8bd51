"""The loads: seven plain ones, then what a policy may stumble over."""

from collections.abc import Callable
from dataclasses import dataclass

from bench.simulation.policy.loads import Crowd, Segment, crowd_of, load

LADDER = (1, 2, 4, 8, 16, 32, 64, 128, 64, 32, 16, 8, 4, 2)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load over time.

    `is_steady`: nothing changes, so switches are noise. `is_plain`: of the seven that the
    yardstick was measured with.
    """

    name: str
    segments: tuple[Segment, ...]
    is_steady: bool = False
    is_plain: bool = False


def all_scenarios(length: int) -> tuple[Scenario, ...]:
    """Every scenario, each of about `length` steps."""
    return (*_plain(length), *_nasty(length))


def _plain(length: int) -> tuple[Scenario, ...]:
    return (
        Scenario("steady .8 b4", (load(length, 4, 0.8),), is_steady=True, is_plain=True),
        Scenario("flips 300 b4", flips(length, 300, 4), is_plain=True),
        Scenario("ladder .7", _ladder(length, lambda n, size: 0.7), is_plain=True),
        Scenario(
            "ladder and flips",
            _ladder(length, lambda n, size: (0.85, 0.30)[n % 2]),
            is_plain=True,
        ),
        Scenario("steady .9 b64", (load(length, 64, 0.9),), is_steady=True, is_plain=True),
        Scenario("steady .25 b32", (load(length, 32, 0.25),), is_steady=True, is_plain=True),
        Scenario("flips 60 b4", flips(length, 60, 4), is_plain=True),
    )


def _nasty(length: int) -> tuple[Scenario, ...]:
    mixed = crowd_of((0.5, 0.9), (0.5, 0.3))
    fading = (Crowd(1.0, (0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)),)
    return (
        Scenario("boundary 7-8", (load(length, (7, 8), 0.7),), is_steady=True),
        Scenario("boundary 63-64", (load(length, (63, 64), 0.6),), is_steady=True),
        Scenario("rate falls with b", _ladder(length, _falling)),
        Scenario("mixed b16", (Segment(length, (16,), (mixed,)),), is_steady=True),
        Scenario("fading b2", (Segment(length, (2,), (fading,)),), is_steady=True),
        Scenario("context grows b16", _growing(length)),
        Scenario("bursts 1-64", _repeat(length, 100, lambda n: load(100, (1, 64)[n % 2], 0.8))),
        Scenario(
            "fate shared b8",
            (Segment(length, (8,), (crowd_of((1.0, 0.9)), crowd_of((1.0, 0.5)))),),
        ),
        Scenario("drift .9 to .3 b8", _drift(length)),
        Scenario("hopeless b1", (load(length, 1, 0.05),), is_steady=True),
        Scenario("hopeless b8", (load(length, 8, 0.05),), is_steady=True),
        Scenario("hopeless b64", (load(length, 64, 0.05),), is_steady=True),
        Scenario("acceptance returns b8", (load(length // 2, 8, 0.05), load(length // 2, 8, 0.9))),
    )


def flips(length: int, steps: int, batch_size: int) -> tuple[Segment, ...]:
    """Good and bad acceptance in turn."""
    return _repeat(length, steps, lambda n: load(steps, batch_size, (0.85, 0.30)[n % 2]))


def _repeat(length: int, steps: int, one: Callable[[int], Segment]) -> tuple[Segment, ...]:
    return tuple(one(number) for number in range(max(length // steps, 2)))


def _ladder(length: int, rate: Callable[[int, int], float]) -> tuple[Segment, ...]:
    steps = max(length // len(LADDER), 1)
    return tuple(load(steps, size, rate(n, size)) for n, size in enumerate(LADDER))


def _falling(number: int, size: int) -> float:
    return 0.85 - 0.07 * (size.bit_length() - 1)


def _growing(length: int) -> tuple[Segment, ...]:
    """From 512 to 16 384 tokens of context each."""
    parts = 32
    return tuple(load(length // parts, 16, 0.7, 512 * (part + 1)) for part in range(parts))


def _drift(length: int) -> tuple[Segment, ...]:
    parts = 30
    return tuple(load(length // parts, 8, 0.9 - 0.02 * part) for part in range(parts))
