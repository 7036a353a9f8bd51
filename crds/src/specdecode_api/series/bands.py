"""Bands of batch sizes and of prompts: the same for every table, so that tables can be compared."""

from bisect import bisect_right
from enum import StrEnum
from typing import Final

BATCH_BANDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Lower bounds; the last band has no end."""

PROMPT_BOUNDS_TOKENS: Final = (256, 2048)
"""Where medium and long prompts begin."""


class Sampling(StrEnum):
    """Whether the likeliest token is taken or one is drawn."""

    GREEDY = "greedy"
    SAMPLED = "sampled"


class GrammarUse(StrEnum):
    """Whether an answer may be any text."""

    FREE = "free"
    CONSTRAINED = "constrained"


class PromptLength(StrEnum):
    """How much a request's decode rounds have to attend to, roughly."""

    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"


def batch_band(batch_size: int) -> int:
    """Lower bound of the band of a round with `batch_size` requests, at least one."""
    return min(1 << (batch_size.bit_length() - 1), BATCH_BANDS[-1])


def prompt_length(prompt_tokens: int) -> PromptLength:
    """Band of a prompt."""
    return tuple(PromptLength)[bisect_right(PROMPT_BOUNDS_TOKENS, prompt_tokens)]
