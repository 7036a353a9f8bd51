"""What depths did: by range of the table that chose them, and by band of batch sizes.

A table's ranges are its own, and their label is `batch_size`; bands (`batch_band`) are the same for
every table and every pod, so what they count can be added up over a fleet.
"""

from specdecode_api.series.form import counter, gauge

BATCH_SIZE = "batch_size"
BATCH_BAND = "batch_band"
STEPS = "steps"
POSITION = "position"

RANGE_ROUNDS = counter("range_rounds", "Decode rounds run. Per range.", BATCH_SIZE)
RANGE_REQUEST_ROUNDS = counter(
    "range_request_rounds", "Decode rounds, once per request in them. Per range.", BATCH_SIZE
)
RANGE_DRAFTED_TOKENS = counter(
    "range_drafted_tokens", "Tokens proposed by the draft. Per range.", BATCH_SIZE
)
RANGE_ACCEPTED_TOKENS = counter(
    "range_accepted_tokens", "Proposed tokens that the target kept. Per range.", BATCH_SIZE
)
RANGE_WASTED_TOKENS = counter(
    "range_wasted_tokens", "Proposed tokens that it did not keep. Per range.", BATCH_SIZE
)
RANGE_EMITTED_TOKENS = counter(
    "range_emitted_tokens", "Tokens added to answers. Per range.", BATCH_SIZE
)
RANGE_DECODE_SECONDS = counter(
    "range_decode_seconds", "Seconds spent in decode rounds. Per range.", BATCH_SIZE
)
DEPTH_SWITCHES = counter(
    "depth_switches",
    "Changes of depth from one decode round to the next, by the range that decided.",
    BATCH_SIZE,
    "reason",
)
RANGE_NUM_STEPS = gauge("range_num_steps", "Draft depth that the range would use now.", BATCH_SIZE)
RANGE_ACCEPTED_EMA = gauge(
    "range_accepted_ema", "Moving average of accepted draft tokens (policy ema).", BATCH_SIZE
)
RANGE_SURVIVAL = gauge(
    "range_survival",
    "Chance that a drafted position is accepted (policy goodput).",
    BATCH_SIZE,
    POSITION,
)
RANGE_EXPECTED = gauge(
    "range_expected_tokens_per_second",
    "What a depth would bring (policy goodput).",
    BATCH_SIZE,
    STEPS,
)

DEPTH_ROUNDS = counter("depth_rounds", "Decode rounds by band and depth.", BATCH_BAND, STEPS)
DEPTH_REQUEST_ROUNDS = counter(
    "depth_request_rounds",
    "The same, once per request in them: by the rounds, the mean batch size.",
    BATCH_BAND,
    STEPS,
)
DEPTH_BUSY_SECONDS = counter(
    "depth_busy_seconds",
    "Seconds that those rounds were worked on, whatever else kept the machine busy.",
    BATCH_BAND,
    STEPS,
)
POSITION_REACHED = counter(
    "position_reached",
    "Drafted tokens at a position whose predecessors were all accepted, of requests that went on.",
    BATCH_BAND,
    POSITION,
)
POSITION_ACCEPTED = counter(
    "position_accepted", "Those of them that the target kept.", BATCH_BAND, POSITION
)

RANGES = (
    RANGE_ROUNDS, RANGE_REQUEST_ROUNDS, RANGE_DRAFTED_TOKENS, RANGE_ACCEPTED_TOKENS,
    RANGE_WASTED_TOKENS, RANGE_EMITTED_TOKENS, RANGE_DECODE_SECONDS, DEPTH_SWITCHES,
    RANGE_NUM_STEPS, RANGE_ACCEPTED_EMA, RANGE_SURVIVAL, RANGE_EXPECTED,
)  # fmt: skip
DEPTHS = (
    DEPTH_ROUNDS, DEPTH_REQUEST_ROUNDS, DEPTH_BUSY_SECONDS, POSITION_REACHED, POSITION_ACCEPTED,
)  # fmt: skip
