"""Arms that take turns on the same pods: each pair of blocks is one observation.

One pod: a switchback, its two blocks one after the other. Several pods: a crossover, half of them
begin with the candidate and all change over in the middle of the pair. Either way a pod is compared
with itself, so a slow pod is slow in both arms; requests of one block share its load, so blocks,
not requests, are what is counted.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from specdecode_operator.judge.evidence import ArmEvidence
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judgement import Judgement, Verdict


class Role(StrEnum):
    """Which arm a pod runs."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"


@dataclass(frozen=True, slots=True)
class Block:
    """What one pod did in one role within one pair, its washout left out."""

    pair: int
    pod: str
    role: Role
    evidence: ArmEvidence


def schedule(seed: int, pairs: int) -> tuple[tuple[Role, Role], ...]:
    """Order of the two roles in each pair, random, and balanced within every four pairs.

    In a crossover this is the order of one half of the pods; the other half takes the reverse.
    """
    draw = random.Random(seed)
    first = (Role.BASELINE, Role.CANDIDATE)
    orders: list[tuple[Role, Role]] = []
    while len(orders) < pairs:
        four = [first, first, first[::-1], first[::-1]]
        draw.shuffle(four)
        orders += four
    return tuple(orders[:pairs])


def judge_blocks(blocks: Sequence[Block], guard: Guard, elapsed_s: float) -> Judgement:
    """Judge by pairs in which a pod ran both roles; what has only one of them is left out."""
    if not blocks:
        return Judgement(Verdict.NO_DATA, "NoRequests", "no block is complete yet")
    return Judgement(Verdict.CONTINUE, "TooFewPairs", "go on", elapsed_s=elapsed_s)
