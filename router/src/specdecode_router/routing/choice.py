"""Chooses the engine of a request: by trial arm, by longest known prefix, by hash, by load."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Final

LOAD_FACTOR: Final = 1.25
"""No engine gets more than this multiple of the mean load."""


class ChoiceReason(StrEnum):
    """Why an engine was chosen."""

    PREFIX = "prefix"  # it knows the longest beginning of the prompt
    HASH = "hash"  # rendezvous hashing of session or prompt
    LOAD = "load"  # the preferred one has too much load
    ONLY = "only"  # there is no other


@dataclass(frozen=True, slots=True)
class RoutingCandidate:
    """An engine that may get a request.

    `name` is its name in the prefix table, `arm` the pods that a trial compares with others.
    `load` counts requests that run and wait there; an engine with `weight` 0.5 gets half a share.
    """

    name: str
    arm: str = ""
    load: int = 0
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Chosen:
    """An engine, and why."""

    name: str
    reason: ChoiceReason


def choose(
    candidates: Sequence[RoutingCandidate], depths: Mapping[str, int], shared: int, key: bytes
) -> Chosen | None:
    """Choose one of the candidates; None if there is none.

    Where pods of several arms are candidates, the hash of `key` chooses the arm, each with the
    share of its pods: neither caches nor load may decide which requests a trial compares. Within
    the arm, an engine that knows more of the prompt than what many prompts share comes first, then
    the order of rendezvous hashing. An engine is passed over while its load is above the bound.

    Args:
        depths: leading blocks of the prompt that each engine knows.
        shared: leading blocks that many different prompts have.
        key: the session, or the part of the prompt that distinguishes a conversation.
    """
    if not candidates:
        return None
    ranked = sorted(candidates, key=lambda each: _rank(key, each.name), reverse=True)
    arm = [each for each in ranked if each.arm == ranked[0].arm]
    if len(arm) == 1:
        return Chosen(arm[0].name, ChoiceReason.ONLY)
    by_depth = sorted(arm, key=lambda each: _useful(depths, shared, each), reverse=True)
    first = by_depth[0]
    limits = load_limits(arm)
    chosen = next((each for each in by_depth if each.load < limits[each.name]), first)
    if chosen is not first:
        return Chosen(chosen.name, ChoiceReason.LOAD)
    is_known = _useful(depths, shared, first) > 0
    return Chosen(first.name, ChoiceReason.PREFIX if is_known else ChoiceReason.HASH)


def load_limits(candidates: Sequence[RoutingCandidate]) -> dict[str, int]:
    """Return the load that each may have, the new request included: 1.25 times its share."""
    total = 1 + sum(each.load for each in candidates)
    weights = sum(each.weight for each in candidates)
    return {
        each.name: math.ceil(LOAD_FACTOR * total * each.weight / weights) for each in candidates
    }


def _useful(depths: Mapping[str, int], shared: int, candidate: RoutingCandidate) -> int:
    depth = depths.get(candidate.name, 0)
    return depth if depth > shared else 0


def _rank(key: bytes, name: str) -> bytes:
    return blake2b(key + name.encode(), digest_size=8).digest()
