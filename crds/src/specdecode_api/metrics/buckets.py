"""Fixed buckets of batch sizes and prompt lengths, so that different tables can be compared."""

from bisect import bisect_right
from enum import StrEnum
from typing import Final

BATCH_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Lower bounds of the batch buckets; the last bucket is unbounded."""

PROMPT_BOUNDS_TOKENS: Final = (256, 2048)
"""Shortest medium and shortest long prompt."""


class Sampling(StrEnum):
    """Whether the most likely token is taken or a token is sampled."""

    GREEDY = "greedy"
    SAMPLED = "sampled"


class GrammarUse(StrEnum):
    """Whether a grammar constrains the output."""

    FREE = "free"
    CONSTRAINED = "constrained"


class PromptLength(StrEnum):
    """Bucket of the prompt length, which bounds the KV length of decode steps from below."""

    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"


def batch_bucket(batch_size: int) -> int:
    """Lower bound of the bucket of a step with `batch_size` requests, at least one."""
    return min(1 << (batch_size.bit_length() - 1), BATCH_BUCKETS[-1])


def prompt_length(prompt_tokens: int) -> PromptLength:
    return tuple(PromptLength)[bisect_right(PROMPT_BOUNDS_TOKENS, prompt_tokens)]
