"""Every metric that engines export: one definition for the engine and for all consumers.

Operator, rules and dashboards query these metrics; docs/metrics.md is generated from them.
"""

from typing import Final

from specdecode_api.metrics.bands import (
    BATCH_BANDS,
    PROMPT_BOUNDS_TOKENS,
    GrammarUse,
    Sampling,
    batch_band,
    prompt_length,
)
from specdecode_api.metrics.core import CORE, GRAPHS, RETRACTED_REQUESTS, TABLE
from specdecode_api.metrics.depths import (
    DEPTH_BUSY_SECONDS,
    DEPTH_REQUEST_ROUNDS,
    DEPTH_ROUNDS,
    DEPTHS,
    POSITION_ACCEPTED,
    POSITION_REACHED,
    RANGES,
)
from specdecode_api.metrics.form import MetricSpec, MetricType
from specdecode_api.metrics.identity import (
    HASHES,
    IDENTITY,
    INFO,
    PROCESS_START,
    TABLE_HASH_DIGITS,
    table_hash,
)
from specdecode_api.metrics.requests import (
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
from specdecode_api.names import METRIC_PREFIX as PREFIX

ENGINE: Final[tuple[MetricSpec, ...]] = (
    *IDENTITY, *CORE, *GRAPHS, *RANGES, *DEPTHS, *PORTIONS, MIXED_REQUESTS, UNSORTED_REQUESTS,
    *LATENCIES, *CALLS,
)  # fmt: skip
"""All metrics of an engine."""

__all__ = [
    "BATCH_BANDS",
    "CALLS",
    "CORE",
    "DEPTHS",
    "DEPTH_BUSY_SECONDS",
    "DEPTH_REQUEST_ROUNDS",
    "DEPTH_ROUNDS",
    "ENGINE",
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
    "MetricSpec",
    "MetricType",
    "Sampling",
    "batch_band",
    "prompt_length",
    "table_hash",
]
