"""Definitions shared by custom resource and boot file: algorithms, policies, tree bounds."""

from collections.abc import Collection
from enum import StrEnum
from typing import Final

MAX_TOPK: Final = 16
MAX_STEPS: Final = 16
MAX_DRAFT_TOKENS: Final = 256
MAX_PAGE_SIZE: Final = 256
MAX_TABLE_ENTRIES: Final = 32
MAX_CANDIDATES: Final = MAX_STEPS + 1

DEFAULT_STEPS: Final = 3
"""Draft steps at start where numSteps is not set."""

MAX_BATCH_SIZE: Final = 999_999
"""Largest lower bound of a range of batch sizes."""

BATCH_SIZE_PATTERN: Final = "[1-9][0-9]{0,5}"
"""A batch size as the key of a table: a string, as every key is in JSON."""


class Algorithm(StrEnum):
    """Where draft tokens come from."""

    NONE = "NONE"
    EAGLE = "EAGLE"
    EAGLE3 = "EAGLE3"
    DFLASH = "DFLASH"
    MTP = "MTP"
    FROZEN_KV_MTP = "FROZEN_KV_MTP"
    STANDALONE = "STANDALONE"
    NGRAM = "NGRAM"


class NgramSource(StrEnum):
    """Data structure that NGRAM drafts from."""

    SUFFIX = "suffix"
    PROMPT = "prompt"
    TRIE = "trie"


class NgramScope(StrEnum):
    """Whose texts NGRAM drafts from: the request's own, or those of all requests of the model."""

    REQUEST = "request"
    MODEL = "model"


class NgramMatch(StrEnum):
    """Which children of a trie's node NGRAM takes first: used last, or most frequent."""

    BFS = "BFS"
    PROB = "PROB"


MAX_NGRAM_DEPTH: Final = 128
MAX_NGRAM_BREADTH: Final = 64
MAX_NGRAM_CAPACITY: Final = 100_000_000
DEFAULT_NGRAM_CAPACITY: Final = 1_000_000
DEFAULT_NGRAM_DEPTH: Final = {
    NgramSource.SUFFIX: 64,
    NgramSource.PROMPT: 18,
    NgramSource.TRIE: 18,
}
DEFAULT_NGRAM_MIN_MATCH: Final = {
    NgramSource.SUFFIX: 1,
    NgramSource.PROMPT: 3,
    NgramSource.TRIE: 1,
}


class Policy(StrEnum):
    """How the draft steps of a step are chosen. No value is a YAML boolean."""

    STATIC = "static"
    EMA = "ema"
    GOODPUT = "goodput"


NEEDS_DRAFT: Final = frozenset(
    {
        Algorithm.EAGLE,
        Algorithm.EAGLE3,
        Algorithm.DFLASH,
        Algorithm.FROZEN_KV_MTP,
        Algorithm.STANDALONE,
    }
)
"""Algorithms with a draft checkpoint of their own."""

DRAFT_IN_TARGET: Final = frozenset({Algorithm.MTP})
"""Algorithms whose draft is in the target's checkpoint where no other is named."""

TAKES_DRAFT: Final = NEEDS_DRAFT | DRAFT_IN_TARGET
"""Algorithms that may name a draft checkpoint; the others must not."""

DRAFTS_BLOCKS: Final = frozenset({Algorithm.DFLASH})
"""Algorithms whose draft computes all of its tokens in one forward."""

AVAILABLE_ALGORITHMS: Final = frozenset(
    {
        Algorithm.NONE,
        Algorithm.STANDALONE,
        Algorithm.EAGLE,
        Algorithm.EAGLE3,
        Algorithm.DFLASH,
        Algorithm.MTP,
        Algorithm.NGRAM,
    }
)
AVAILABLE_POLICIES: Final = frozenset({Policy.STATIC, Policy.EMA, Policy.GOODPUT})


def max_tree_tokens(topk: int, num_steps: int) -> int:
    """Largest number of nodes, root included, of a tree `topk` wide and `num_steps` deep."""
    if num_steps == 0:
        return 1
    return 1 + topk + (num_steps - 1) * topk * topk


def default_draft_tokens(topk: int, num_steps: int) -> int:
    """Default number of nodes to verify, root included: one level of `topk` per draft step.

    For a chain that is num_steps + 1.
    """
    return min(1 + topk * num_steps, max_tree_tokens(topk, num_steps), MAX_DRAFT_TOKENS)


def effective_num_steps(
    algorithm: Algorithm, num_steps: int | None, candidates: Collection[int]
) -> int:
    """Draft steps at start: `num_steps`, else 3, else the median of the table's `candidates`."""
    if algorithm is Algorithm.NONE:
        return 0
    if num_steps is not None:
        return num_steps
    if not candidates or DEFAULT_STEPS in candidates:
        return DEFAULT_STEPS
    ascending = sorted(set(candidates))
    return ascending[len(ascending) // 2]


def not_yet_available(algorithm: Algorithm, policy: Policy, topk: int) -> tuple[str, ...]:
    """Why the engine of this release cannot run a speculation that the contract allows."""
    reasons = []
    if algorithm not in AVAILABLE_ALGORITHMS:
        names = ", ".join(sorted(AVAILABLE_ALGORITHMS))
        reasons.append(
            f"algorithm {algorithm} is not available in this release; use one of {names}"
        )
    if policy not in AVAILABLE_POLICIES:
        names = ", ".join(sorted(AVAILABLE_POLICIES))
        reasons.append(f"policy {policy} is not available in this release; use one of {names}")
    return tuple(reasons)
