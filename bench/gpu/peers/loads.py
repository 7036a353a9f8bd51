"""The requests that every engine gets: prompts, and requests that come and go."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

KINDS = 6


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a load: a rate of decoding is that of the difference of both answers."""

    prompt: int
    short: int
    long: int


@dataclass(frozen=True, slots=True)
class Loads:
    """All loads of a run."""

    decode: Lengths
    prefill_prompt: int
    varying: tuple["Stage", ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """So many requests of which the next one starts while fewer than `running` run."""

    running: int
    requests: int


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """A request that starts as soon as, with it, at most `running` run."""

    prompt: tuple[int, ...]
    tokens: int
    running: int
    kind: int


FULL = Loads(
    Lengths(256, 32, 224),
    1000,
    (
        Stage(1, 4),
        Stage(8, 32),
        Stage(64, 128),
        Stage(128, 256),
        Stage(16, 64),
        Stage(2, 8),
    ),
)
SMALL = Loads(Lengths(16, 8, 40), 64, (Stage(1, 2), Stage(8, 16), Stage(2, 4)))
BY_MODEL = {
    "": SMALL,
    "pair": Loads(Lengths(32, 16, 144), 64, ()),
    "540m": Loads(Lengths(32, 8, 40), 1000, ()),
}
"""On a CPU, by the name of the checkpoint."""
HTTP_REQUESTS_PER_STREAM = 3
SHORTEST = 0.5
"""Of a varying answer, as a share of the longest."""


def draw_prompts(cycle: Sequence[int], batch: int, length: int, seed: str) -> list[list[int]]:
    """Return prompts of random tokens of the cycle."""
    draw = random.Random(f"{batch} {length} {seed}")
    return [[draw.choice(cycle) for _ in range(length)] for _ in range(batch)]


def http_stages(streams: int) -> tuple[Stage, ...]:
    """Return the load over HTTP: so many streams, each with one request after another."""
    return (Stage(streams, HTTP_REQUESTS_PER_STREAM * streams),)


def draw_schedule(
    cycle: Sequence[int], lengths: Lengths, stages: Sequence[Stage], seed: int, kinds: int = KINDS
) -> list[ScheduledRequest]:
    """Return requests that come and go, each at a place of the cycle that belongs to its kind.

    The cycle has a part per kind, one after another; no answer leaves the part of its kind.

    Raises:
        ValueError: a part is shorter than an answer.
    """
    draw, part = random.Random(seed), len(cycle) // kinds
    if part <= lengths.long:
        raise ValueError(f"{part} tokens of the cycle per kind; an answer has {lengths.long}")
    requests = []
    for stage in stages:
        for _ in range(stage.requests):
            tokens = draw.randint(round(lengths.long * SHORTEST), lengths.long)
            kind = draw.randrange(kinds)
            last = cycle[kind * part + draw.randrange(part - tokens)]
            before = (draw.choice(cycle) for _ in range(lengths.prompt - 1))
            requests.append(ScheduledRequest((*before, last), tokens, stage.running, kind))
    return requests
