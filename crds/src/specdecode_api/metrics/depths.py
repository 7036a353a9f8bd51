"""Metrics by draft steps: per range of the table that chose them, and per fixed batch bucket.

The ranges (label `batch_size`) depend on the table; the buckets (label `batch_band`) are the same
for every table and pod, so their counters can be summed over a fleet.
"""

from specdecode_api.metrics.form import counter, gauge

BATCH_SIZE = "batch_size"
BATCH_BAND = "batch_band"
STEPS = "steps"
POSITION = "position"

RANGE_ROUNDS = counter("range_rounds", "Decode steps, per range.", BATCH_SIZE)
RANGE_REQUEST_ROUNDS = counter(
    "range_request_rounds",
    "Decode steps, counted once per request in the batch, per range.",
    BATCH_SIZE,
)
RANGE_DRAFTED_TOKENS = counter(
    "range_drafted_tokens", "Draft tokens proposed, per range.", BATCH_SIZE
)
RANGE_ACCEPTED_TOKENS = counter(
    "range_accepted_tokens", "Draft tokens accepted by the target, per range.", BATCH_SIZE
)
RANGE_WASTED_TOKENS = counter(
    "range_wasted_tokens", "Draft tokens rejected by the target, per range.", BATCH_SIZE
)
RANGE_EMITTED_TOKENS = counter("range_emitted_tokens", "Output tokens, per range.", BATCH_SIZE)
RANGE_DECODE_SECONDS = counter(
    "range_decode_seconds", "Seconds spent in decode steps, per range.", BATCH_SIZE
)
DEPTH_SWITCHES = counter(
    "depth_switches",
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

DEPTH_ROUNDS = counter(
    "depth_rounds", "Decode steps by batch bucket and draft steps.", BATCH_BAND, STEPS
)
DEPTH_REQUEST_ROUNDS = counter(
    "depth_request_rounds",
    "Decode steps, counted once per request; divided by depth_rounds: the mean batch size.",
    BATCH_BAND,
    STEPS,
)
DEPTH_BUSY_SECONDS = counter(
    "depth_busy_seconds",
    "Busy seconds of these decode steps, without other work of the machine.",
    BATCH_BAND,
    STEPS,
)
POSITION_REACHED = counter(
    "position_reached",
    "Draft tokens at a position with all predecessors accepted, of requests that continued.",
    BATCH_BAND,
    POSITION,
)
POSITION_ACCEPTED = counter(
    "position_accepted",
    "Draft tokens of position_reached that the target accepted.",
    BATCH_BAND,
    POSITION,
)

RANGES = (
    RANGE_ROUNDS, RANGE_REQUEST_ROUNDS, RANGE_DRAFTED_TOKENS, RANGE_ACCEPTED_TOKENS,
    RANGE_WASTED_TOKENS, RANGE_EMITTED_TOKENS, RANGE_DECODE_SECONDS, DEPTH_SWITCHES,
    RANGE_NUM_STEPS, RANGE_ACCEPTED_EMA, RANGE_SURVIVAL, RANGE_EXPECTED,
)  # fmt: skip
DEPTHS = (
    DEPTH_ROUNDS, DEPTH_REQUEST_ROUNDS, DEPTH_BUSY_SECONDS, POSITION_REACHED, POSITION_ACCEPTED,
)  # fmt: skip
