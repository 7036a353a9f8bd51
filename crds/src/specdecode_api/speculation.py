"""Definitions shared by custom resource and boot file: algorithms, policies, tree bounds."""

from collections.abc import Collection
from enum import Enum, StrEnum
from typing import Final

MAX_TOPK: Final = 16
MAX_STEPS: Final = 16
MAX_DRAFT_TOKENS: Final = 256
MAX_PAGE_SIZE: Final = 256
MAX_TABLE_ENTRIES: Final = 32
MAX_CANDIDATES: Final = MAX_STEPS + 1

DEFAULT_STEPS: Final = 3
"""Draft steps at start where numSteps is not set."""

MOST_DEFAULT_STEPS: Final = 7
"""Most draft steps of the default tables of most algorithms."""

MAX_BATCH_SIZE: Final = 999_999
"""Largest lower bound of a range of batch sizes."""

BATCH_SIZE_PATTERN: Final = "[1-9][0-9]{0,5}"
"""A batch size as the key of a table: a string, as every key is in JSON."""


class DraftCheckpoint(Enum):
    """Whether an algorithm drafts with a checkpoint besides the target's."""

    NEVER = "never"
    ALWAYS = "always"
    ELSE_TARGET = "else_target"  # without one, the draft is in the target's checkpoint


class Algorithm(StrEnum):
    """Where draft tokens come from."""

    checkpoint: DraftCheckpoint
    most_default_steps: int  # of its default tables
    drafts_trees: bool  # or chains alone

    def __new__(
        cls,
        value: str,
        checkpoint: DraftCheckpoint = DraftCheckpoint.ALWAYS,
        most_default_steps: int = MOST_DEFAULT_STEPS,
        drafts_trees: bool = True,
    ) -> "Algorithm":
        member = str.__new__(cls, value)
        member._value_ = value
        member.checkpoint, member.most_default_steps = checkpoint, most_default_steps
        member.drafts_trees = drafts_trees
        return member

    NONE = "NONE", DraftCheckpoint.NEVER
    STANDALONE = "STANDALONE"
    EAGLE = "EAGLE"
    EAGLE3 = "EAGLE3"
    # Drafting all tokens in one forward takes the same time whatever is verified of them.
    PEAGLE = "PEAGLE", DraftCheckpoint.ALWAYS, 15
    DFLASH = "DFLASH", DraftCheckpoint.ALWAYS, 15
    DSPARK = "DSPARK", DraftCheckpoint.ALWAYS, 15
    # A module is trained for one draft step, and its acceptance falls fast after that.
    MTP = "MTP", DraftCheckpoint.ELSE_TARGET, 3
    # A module for each draft step; published checkpoints have 3 or 8. A module reads a window that
    # contains drafted tokens, so that each branch of a tree would need one of its own.
    MTP_CHAIN = "MTP_CHAIN", DraftCheckpoint.ELSE_TARGET, 8, False
    FROZEN_KV_MTP = "FROZEN_KV_MTP"
    NGRAM = "NGRAM", DraftCheckpoint.NEVER

    @property
    def needs_draft(self) -> bool:
        """Whether it drafts with a checkpoint of its own."""
        return self.checkpoint is DraftCheckpoint.ALWAYS

    @property
    def takes_draft(self) -> bool:
        """Whether it drafts with a model, which may have a checkpoint of its own."""
        return self.checkpoint is not DraftCheckpoint.NEVER

    @property
    def may_draft_with_target(self) -> bool:
        """Whether its draft is in the target's checkpoint where no other is named."""
        return self.checkpoint is DraftCheckpoint.ELSE_TARGET


class Fallback(StrEnum):
    """What drafts next to a draft model."""

    NGRAM = "NGRAM"

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that drafts alone in the same way."""
        return Algorithm(self.value)


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


class Objective(StrEnum):
    """What policy goodput maximizes: tokens per second, of all steps or of those short enough."""

    THROUGHPUT = "throughput"
    INTER_TOKEN_LATENCY = "inter_token_latency"


MAX_INTER_TOKEN_MS: Final = 60_000


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


def drafted_tokens(topk: int, num_steps: int, at_start: tuple[int, int] | None = None) -> int:
    """Tokens that a request drafts in a step of `num_steps` draft steps.

    Args:
        at_start: `num_steps` and `num_draft_tokens` of a configuration that sets the latter, which
            counts the root and is for these draft steps alone.
    """
    if at_start is not None and at_start[0] == num_steps:
        return at_start[1] - 1
    return default_draft_tokens(topk, num_steps) - 1


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
