"""Every metric that engines export: one definition for the engine and for all consumers.

Operator, rules and dashboards query these metrics; docs/metrics.md is generated from them.
"""

from typing import Final

from specdecode_api.metrics.buckets import (
    BATCH_BUCKETS,
    PROMPT_BOUNDS_TOKENS,
    GrammarUse,
    Sampling,
    batch_bucket,
    prompt_length,
)
from specdecode_api.metrics.core import CORE, GRAPHS, PREEMPTED_REQUESTS, TABLE, VERIFY_ROWS
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
    REQUEST_SUMS,
    REQUESTS,
    STRATUM,
    SUMS,
    UNSORTED_REQUESTS,
)
from specdecode_api.metrics.speculation import (
    BUCKET_BUSY_SECONDS,
    BUCKET_REQUEST_STEPS,
    BUCKET_STEPS,
    BUCKETS,
    POSITION_ACCEPTED,
    POSITION_REACHED,
    RANGES,
)
from specdecode_api.names import METRIC_PREFIX as PREFIX

ENGINE: Final[tuple[MetricSpec, ...]] = (
    *IDENTITY, *CORE, *GRAPHS, *RANGES, *BUCKETS, *REQUEST_SUMS, MIXED_REQUESTS, UNSORTED_REQUESTS,
    *LATENCIES, *CALLS,
)  # fmt: skip
"""All metrics of an engine."""

__all__ = [
    "BATCH_BUCKETS",
    "BUCKETS",
    "BUCKET_BUSY_SECONDS",
    "BUCKET_REQUEST_STEPS",
    "BUCKET_STEPS",
    "CALLS",
    "CORE",
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
    "POSITION_ACCEPTED",
    "POSITION_REACHED",
    "PREEMPTED_REQUESTS",
    "PREFIX",
    "PROCESS_START",
    "PROMPT_BOUNDS_TOKENS",
    "RANGES",
    "REQUESTS",
    "REQUEST_SUMS",
    "STRATUM",
    "SUMS",
    "TABLE",
    "TABLE_HASH_DIGITS",
    "UNSORTED_REQUESTS",
    "VERIFY_ROWS",
    "GrammarUse",
    "MetricSpec",
    "MetricType",
    "Sampling",
    "batch_bucket",
    "prompt_length",
    "table_hash",
]
