"""Every series that engines export: one definition for who writes and all who read them.

Operator, rules and dashboards ask for these; docs/metrics.md is written from them.
"""

from typing import Final

from specdecode_api.names import METRIC_PREFIX as PREFIX
from specdecode_api.series.about import FACTS, HASHES, IDENTITY, INFO, PROCESS_START
from specdecode_api.series.bands import (
    BATCH_BANDS,
    PROMPT_BOUNDS_TOKENS,
    GrammarUse,
    PromptLength,
    Sampling,
    batch_band,
    prompt_length,
)
from specdecode_api.series.core import CORE, GRAPHS, RETRACTED_REQUESTS, TABLE
from specdecode_api.series.depths import (
    DEPTH_BUSY_SECONDS,
    DEPTH_REQUEST_ROUNDS,
    DEPTH_ROUNDS,
    DEPTHS,
    POSITION_ACCEPTED,
    POSITION_REACHED,
    RANGES,
)
from specdecode_api.series.form import Kind, Series
from specdecode_api.series.identity import TABLE_HASH_DIGITS, table_hash
from specdecode_api.series.requests import (
    CALLS,
    FIRST_TOKEN_SECONDS,
    HTTP_ERRORS,
    INTER_TOKEN_SECONDS,
    LATENCIES,
    MAX_STRATA,
    MAX_TABLES,
    MIXED_REQUESTS,
    PORTIONS,
    REQUESTS,
    STRATUM,
    SUMS,
    UNSORTED_REQUESTS,
)

ENGINE: Final[tuple[Series, ...]] = (
    *IDENTITY, *CORE, *GRAPHS, *RANGES, *DEPTHS, *PORTIONS, MIXED_REQUESTS, UNSORTED_REQUESTS,
    *LATENCIES, *CALLS,
)  # fmt: skip
"""All of them."""

__all__ = [
    "BATCH_BANDS",
    "CALLS",
    "CORE",
    "DEPTHS",
    "DEPTH_BUSY_SECONDS",
    "DEPTH_REQUEST_ROUNDS",
    "DEPTH_ROUNDS",
    "ENGINE",
    "FACTS",
    "FIRST_TOKEN_SECONDS",
    "GRAPHS",
    "HASHES",
    "HTTP_ERRORS",
    "IDENTITY",
    "INFO",
    "INTER_TOKEN_SECONDS",
    "LATENCIES",
    "MAX_STRATA",
    "MAX_TABLES",
    "MIXED_REQUESTS",
    "PORTIONS",
    "POSITION_ACCEPTED",
    "POSITION_REACHED",
    "PREFIX",
    "PROCESS_START",
    "PROMPT_BOUNDS_TOKENS",
    "RANGES",
    "REQUESTS",
    "RETRACTED_REQUESTS",
    "STRATUM",
    "SUMS",
    "TABLE",
    "TABLE_HASH_DIGITS",
    "UNSORTED_REQUESTS",
    "GrammarUse",
    "Kind",
    "PromptLength",
    "Sampling",
    "Series",
    "batch_band",
    "prompt_length",
    "table_hash",
]
