"""Metrics per request, by the table that chose the draft steps of its decode steps.

The sums over requests give tokens per step and seconds per token without a request log. Only the
latest tables are exported: see `MAX_TABLES`.
"""

from typing import Final

from specdecode_api.metrics.core import TABLE
from specdecode_api.metrics.form import counter, gauge, histogram
from specdecode_api.metrics.speculation import BATCH_BUCKET

STRATUM: Final = (BATCH_BUCKET, "sampling", "grammar", "prompt", "request_label")
"""Labels of comparable requests, in the order of a stratum's fields."""

MAX_TABLES: Final = 4
"""Tables that an engine exports at a time: the most recently used.

The series of an older table end; they are not added to those of another table, which would look
like traffic. A table that is used again starts at 0, as after a restart.
"""
MAX_STRATA: Final = 128
"""Strata per table; requests of further strata count as `unsorted`."""

SUMS: Final = ("requests", "tokens", "steps", "seconds")
"""What is summed over requests."""

_SUM_TEXTS: Final = {
    "requests": "Ended requests with a decode step, in the bucket of most of their decode steps.",
    "tokens": "Output tokens of their decode steps in that bucket.",
    "steps": "Their decode steps in that bucket.",
    "seconds": "Seconds of those steps.",
}

REQUEST_SUMS: Final = tuple(
    counter(f"request_sum_{name}", _SUM_TEXTS[name], TABLE, *STRATUM) for name in SUMS
)
"""The metrics of `SUMS`, in their order."""

MIXED_REQUESTS = counter(
    "request_sum_mixed_requests", "Requests decoded under more than one table, which are in no sum."
)
UNSORTED_REQUESTS = counter(
    "request_sum_unsorted_requests",
    f"Requests in no sum, because their table has {MAX_STRATA} strata already.",
)

FIRST_TOKEN_SECONDS = histogram(
    "time_to_first_token_seconds",
    "Time from arrival to the first token of a request.",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    TABLE,
)
INTER_TOKEN_SECONDS = histogram(
    "inter_token_seconds",
    "Time between tokens; the time of a step is divided by its output tokens.",
    (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 5),
    TABLE,
)
REQUEST_SECONDS = histogram(
    "request_seconds",
    "Time from arrival to the last token of a request.",
    (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600),
    TABLE,
)
REQUESTS = counter(
    "requests",
    "Requests by finish reason; abort after a disconnect or a failure.",
    "finish_reason",
    TABLE,
)
HTTP_ERRORS = counter(
    "http_errors", "HTTP requests that failed, broken streams included.", "status", TABLE
)
TABLE_RELOADS = counter(
    "table_reloads",
    "Speculation tables received while running, by result: applied, renewed, refused, removed, "
    "expired.",
    "result",
)
DRAFT_EXCHANGES = counter(
    "draft_exchanges", "Drafts received while running, by result: applied, refused.", "result"
)
ENGINE_FAILURES = counter(
    "engine_failures",
    "Failures after which the engine starts again, in a new container with the reason as its "
    "termination message, or in a new process of the same server.",
    "reason",
)
RESUMED_REQUESTS = counter(
    "resumed_requests",
    "HTTP requests that continued in the next engine process after one had died; one twice if two "
    "died.",
)
IGNORED_FIELDS = counter(
    "ignored_fields",
    "Fields of requests that were ignored, by name; `other` for names that no engine knows.",
    "field",
)
REQUEST_PROMPT_TOKENS = counter("request_prompt_tokens", "Prompt tokens of successful requests.")
REQUEST_COMPLETION_TOKENS = counter(
    "request_completion_tokens", "Output tokens of successful requests."
)
STORED_RESPONSES = gauge("stored_responses", "Responses that clients may read and continue.")
STORED_RESPONSE_BYTES = gauge(
    "stored_response_bytes", "Memory of the stored responses; the oldest are dropped at the limit."
)

LATENCIES = (FIRST_TOKEN_SECONDS, INTER_TOKEN_SECONDS, REQUEST_SECONDS)
CALLS = (
    REQUESTS, HTTP_ERRORS, TABLE_RELOADS, DRAFT_EXCHANGES, ENGINE_FAILURES, RESUMED_REQUESTS,
    IGNORED_FIELDS, REQUEST_PROMPT_TOKENS, REQUEST_COMPLETION_TOKENS,
    STORED_RESPONSES, STORED_RESPONSE_BYTES,
)  # fmt: skip
