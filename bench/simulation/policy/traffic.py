"""Loads of requests that differ: how well their drafts are accepted, for how long, and who comes.

A slot serves requests of one kind one after the other, so that the mix of a load does not depend
on how fast a policy serves each kind.
"""

from dataclasses import dataclass

from bench.simulation.policy.loads import even

CONCURRENCY = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of an answer: conditional rates by position, and its mean length in tokens."""

    rates: tuple[float, ...]
    tokens: float = float("inf")


@dataclass(frozen=True, slots=True)
class Kind:
    """Requests of one kind. Phases follow one another, the first after the last.

    With `prompt_tokens` an answer ends after `answer_tokens`, and the next prompt is computed in
    the same step as the rest of the batch decodes.
    """

    phases: tuple[Phase, ...]
    prompt_tokens: int = 0
    answer_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Steps with so many slots; `kinds` are shares of them."""

    steps: int
    slots: int
    kinds: tuple[tuple[float, Kind], ...]

    def kind_of(self, slot: int) -> Kind:
        """Spread the kinds evenly over the slots."""
        place = (slot + 0.5) * GOLDEN % 1.0 if len(self.kinds) > 1 else 0.0
        for share, kind in self.kinds:
            place -= share
            if place < 0.0:
                return kind
        return self.kinds[-1][1]


GOLDEN = 0.6180339887498949
"""Multiples of it modulo 1 fill the unit interval evenly."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """A load over time; its parts repeat."""

    name: str
    parts: tuple[Part, ...]
    kv_per_request: int = 512


def steady(rate: float) -> Kind:
    """The same rate at every position, for ever."""
    return Kind((Phase(even(rate)),))


GOOD, BAD = steady(0.9), steady(0.3)
PROSE_AND_CODE = Kind((Phase(even(0.4), 128.0), Phase(even(0.92), 128.0)))
FADING = Kind((Phase((0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)),))
CHAT = Kind((Phase(even(0.5)),), prompt_tokens=128, answer_tokens=48)
CODE = Kind((Phase(even(0.9)),), prompt_tokens=128, answer_tokens=96)
MIXED = "mixed .3 .9"


def all_traffic(slots: int, steps: int) -> tuple[Traffic, ...]:
    """Every load at one concurrency."""
    alike = [
        Traffic(f"alike {rate:g}", (Part(steps, slots, ((1.0, steady(rate)),)),))
        for rate in (0.05, 0.3, 0.6, 0.8, 0.9)
    ]
    spread = tuple((0.2, steady(rate)) for rate in (0.2, 0.4, 0.6, 0.8, 0.95))
    burst = steps // 8
    return (
        *alike,
        Traffic("fading", (Part(steps, slots, ((1.0, FADING),)),)),
        Traffic(MIXED, (Part(steps, slots, ((0.5, GOOD), (0.5, BAD))),)),
        Traffic("spread .2 to .95", (Part(steps, slots, spread),)),
        Traffic("prose and code", (Part(steps, slots, ((1.0, PROSE_AND_CODE),)),)),
        Traffic(
            "bursts",
            (
                Part(burst, 1, ((0.5, GOOD), (0.5, BAD))),
                Part(burst, slots, ((0.5, GOOD), (0.5, BAD))),
            ),
        ),
        Traffic("prompts", (Part(steps, slots, ((0.5, CHAT), (0.5, CODE))),)),
        Traffic("drafts become good", _turns(steps, slots, steady(0.05), GOOD)),
    )


def published_traffic(slots: int, steps: int, share: float, good: float, bad: float) -> Traffic:
    """Two kinds of requests, as the fit of `vl52362` assumes them."""
    kinds = ((share, steady(good)), (1.0 - share, steady(bad)))
    return Traffic("published", (Part(steps, slots, kinds),), kv_per_request=0)


def _turns(steps: int, slots: int, *kinds: Kind) -> tuple[Part, ...]:
    return tuple(Part(steps // len(kinds), slots, ((1.0, kind),)) for kind in kinds)
