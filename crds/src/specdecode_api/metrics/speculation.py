"""Metrics by draft steps: per range of the table that chose them, and per fixed batch bucket.

The ranges (label `batch_size`) depend on the table; the buckets (label `batch_bucket`) are the
same for every table and pod, so their counters can be summed over a fleet.
"""

from specdecode_api.metrics.form import counter, gauge

BATCH_SIZE = "batch_size"
BATCH_BUCKET = "batch_bucket"
STEPS = "num_steps"
POSITION = "position"

RANGE_STEPS = counter("range_steps", "Decode steps, per range.", BATCH_SIZE)
RANGE_REQUEST_STEPS = counter(
    "range_request_steps",
    "Decode steps, counted once per request in the batch, per range.",
    BATCH_SIZE,
)
RANGE_DRAFTED_TOKENS = counter(
    "range_drafted_tokens", "Draft tokens proposed, per range.", BATCH_SIZE
)
RANGE_VERIFIED_TOKENS = counter(
    "range_verified_tokens", "Draft tokens verified by the target, per range.", BATCH_SIZE
)
RANGE_ACCEPTED_TOKENS = counter(
    "range_accepted_tokens", "Draft tokens accepted by the target, per range.", BATCH_SIZE
)
RANGE_WASTED_TOKENS = counter(
    "range_wasted_tokens",
    "Draft tokens not accepted, per range: rejected by the target, or not verified.",
    BATCH_SIZE,
)
RANGE_EMITTED_TOKENS = counter("range_emitted_tokens", "Output tokens, per range.", BATCH_SIZE)
RANGE_DECODE_SECONDS = counter(
    "range_decode_seconds", "Seconds spent in decode steps, per range.", BATCH_SIZE
)
NUM_STEPS_SWITCHES = counter(
    "num_steps_switches",
    "Changes of draft steps from one decode step to the next, by the range that chose them.",
    BATCH_SIZE,
    "reason",
)
RANGE_NUM_STEPS = gauge("range_num_steps", "Draft steps that the range uses now.", BATCH_SIZE)
RANGE_ACCEPTED_EMA = gauge(
    "range_accepted_ema", "Moving average of accepted draft tokens (policy ema).", BATCH_SIZE
)
RANGE_SURVIVAL = gauge(
    "range_survival",
    "Estimated probability that a draft position is accepted (policy goodput).",
    BATCH_SIZE,
    POSITION,
)
RANGE_EXPECTED = gauge(
    "range_expected_tokens_per_second",
    "Expected tokens per second by draft steps (policy goodput).",
    BATCH_SIZE,
    STEPS,
)

BUCKET_STEPS = counter(
    "bucket_steps", "Decode steps by batch bucket and draft steps.", BATCH_BUCKET, STEPS
)
BUCKET_REQUEST_STEPS = counter(
    "bucket_request_steps",
    "Decode steps, counted once per request; divided by bucket_steps: the mean batch size.",
    BATCH_BUCKET,
    STEPS,
)
BUCKET_BUSY_SECONDS = counter(
    "bucket_busy_seconds",
    "Busy seconds of these decode steps, without other work of the machine.",
    BATCH_BUCKET,
    STEPS,
)
POSITION_REACHED = counter(
    "position_reached",
    "Draft tokens at a position with all predecessors accepted, of requests that continued.",
    BATCH_BUCKET,
    POSITION,
)
POSITION_ACCEPTED = counter(
    "position_accepted",
    "Draft tokens of position_reached that the target accepted.",
    BATCH_BUCKET,
    POSITION,
)

RANGES = (
    RANGE_STEPS, RANGE_REQUEST_STEPS, RANGE_DRAFTED_TOKENS, RANGE_VERIFIED_TOKENS,
    RANGE_ACCEPTED_TOKENS, RANGE_WASTED_TOKENS, RANGE_EMITTED_TOKENS, RANGE_DECODE_SECONDS,
    NUM_STEPS_SWITCHES, RANGE_NUM_STEPS, RANGE_ACCEPTED_EMA, RANGE_SURVIVAL, RANGE_EXPECTED,
)  # fmt: skip
BUCKETS = (
    BUCKET_STEPS, BUCKET_REQUEST_STEPS, BUCKET_BUSY_SECONDS, POSITION_REACHED, POSITION_ACCEPTED,
)  # fmt: skip
