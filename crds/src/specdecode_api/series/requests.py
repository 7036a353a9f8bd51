"""What requests saw, by the table that their rounds were decided by.

The nine sums over requests give mean and delta-method variance of tokens per round and of seconds
per token without a log of requests. Only the last tables are told: see `MAX_TABLES`.
"""

from typing import Final

from specdecode_api.series.core import TABLE
from specdecode_api.series.depths import BATCH_BAND
from specdecode_api.series.form import counter, histogram

STRATUM: Final = (BATCH_BAND, "sampling", "grammar", "prompt", "request_label")
"""Labels of comparable requests, in the order of a stratum's fields."""

MAX_TABLES: Final = 4
"""Tables that an engine tells of at a time, the latest used.

The series of an older one end. They do not run into another's, which would look like traffic; a
table that is used again begins at 0, as after a restart, so no series ever decreases.
"""
MAX_STRATA: Final = 128
"""Strata that an engine keeps of one table; requests of more count as `unsorted`."""

SUMS: Final = (
    "requests", "tokens", "rounds", "seconds", "tokens_squared", "rounds_squared",
    "seconds_squared", "tokens_rounds", "seconds_tokens",
)  # fmt: skip
"""The sums over requests of (tokens, rounds, seconds), their squares, and two cross products."""

_SUM_TEXTS: Final = {
    "requests": "Requests that left after at least one decode round, in the band of most of them.",
    "tokens": "Tokens that decode rounds of that band added to them.",
    "rounds": "Decode rounds of that band that they took part in.",
    "seconds": "Seconds that those rounds took.",
    "tokens_squared": "Sum over requests of their tokens, squared.",
    "rounds_squared": "Sum over requests of their rounds, squared.",
    "seconds_squared": "Sum over requests of their seconds, squared.",
    "tokens_rounds": "Sum over requests of their tokens times their rounds.",
    "seconds_tokens": "Sum over requests of their seconds times their tokens.",
}

PORTIONS: Final = tuple(
    counter(f"portion_{name}", _SUM_TEXTS[name], TABLE, *STRATUM) for name in SUMS
)
"""The series of `SUMS`, in their order."""

MIXED_REQUESTS = counter(
    "portion_mixed_requests", "Requests that rounds of more than one table decoded: in no sum."
)
UNSORTED_REQUESTS = counter(
    "portion_unsorted_requests", f"Requests in no sum, as a table has {MAX_STRATA} strata already."
)

FIRST_TOKEN_SECONDS = histogram(
    "time_to_first_token_seconds",
    "From the request's arrival to its first token.",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    TABLE,
)
INTER_TOKEN_SECONDS = histogram(
    "inter_token_seconds",
    "Between tokens; the time of a round is shared by the tokens it added.",
    (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 5),
    TABLE,
)
REQUEST_SECONDS = histogram(
    "request_seconds",
    "From the request's arrival to its last token.",
    (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600),
    TABLE,
)
REQUESTS = counter(
    "requests",
    "Requests by finish reason; abort if the client left, or on a failure.",
    "finish_reason",
    TABLE,
)
HTTP_ERRORS = counter(
    "http_errors", "Calls answered with an error, streams that broke included.", "status", TABLE
)
TABLE_RELOADS = counter("table_reloads", "Speculation tables offered while running.", "result")
REQUEST_PROMPT_TOKENS = counter("request_prompt_tokens", "Prompt tokens of answered calls.")
REQUEST_COMPLETION_TOKENS = counter("request_completion_tokens", "Tokens of answered calls.")

LATENCIES = (FIRST_TOKEN_SECONDS, INTER_TOKEN_SECONDS, REQUEST_SECONDS)
CALLS = (
    REQUESTS, HTTP_ERRORS, TABLE_RELOADS, REQUEST_PROMPT_TOKENS, REQUEST_COMPLETION_TOKENS,
)  # fmt: skip
