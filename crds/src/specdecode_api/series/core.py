"""What the engine core counts: rounds, tokens, seconds, its cache, its captured passes."""

from typing import Final

from specdecode_api.series.form import counter, gauge

TABLE: Final = "table"
"""Label of what is counted by the hash of the table in force."""

ROUNDS = counter("rounds", "Decode rounds run.")
REQUEST_ROUNDS = counter("request_rounds", "Decode rounds, counted once per request in them.")
DRAFTED_TOKENS = counter("drafted_tokens", "Tokens proposed by the draft.")
ACCEPTED_TOKENS = counter("accepted_tokens", "Proposed tokens that the target kept.")
EMITTED_TOKENS = counter("emitted_tokens", "Tokens that decode rounds added to answers.")
PROMPT_TOKENS = counter("prompt_tokens", "Prompt tokens computed.")
DECODE_SECONDS = counter("decode_seconds", "Seconds spent in decode rounds.")
PREFILL_SECONDS = counter("prefill_seconds", "Seconds spent computing prompts.")
CACHE_QUERIED_TOKENS = counter(
    "prefix_cache_queried_tokens",
    "Tokens of admitted requests; one that was retracted is admitted and counted again.",
)
CACHE_HIT_TOKENS = counter(
    "prefix_cache_hit_tokens", "Tokens of admitted requests whose key-value pages were cached."
)
CACHE_EVICTED_PAGES = counter(
    "prefix_cache_evicted_pages", "Cached pages that were given up for memory."
)
RETRACTED_REQUESTS = counter(
    "retracted_requests", "Requests sent back to the queue for memory.", TABLE
)

RUNNING_REQUESTS = gauge("running_requests", "Requests that take part in steps.")
WAITING_REQUESTS = gauge("waiting_requests", "Requests that wait for a place or for memory.")
CACHE_PAGES = gauge("prefix_cache_pages", "Pages that the prefix cache keeps.")
KV_PAGES = gauge("kv_pages", "Pages of the key-value cache by state.", "state")
NUM_STEPS = gauge("num_steps", "Draft depth of the latest decode round.")
NUM_DRAFT_TOKENS = gauge("num_draft_tokens", "Nodes that it verified, root included.")
ACTIVE_RANGE = gauge("active_range", "Lower bound of the batch sizes whose slot decided it.")
ACCEPT_LENGTH = gauge("accept_length", "Tokens per request and decode round, since the start.")
LOAD = gauge(
    "load", "Requests that run and wait, by places, corrected by the accept length of late."
)

GRAPH_BATCH_SIZES = gauge("graph_batch_sizes", "Batch sizes captured for a depth.", "steps")
GRAPH_BYTES = gauge("graph_bytes", "Memory of a depth's captured passes.", "steps")
GRAPH_CAPTURE_SECONDS = gauge("graph_capture_seconds", "Time that capturing a depth took.", "steps")
GRAPH_SHARED_BYTES = gauge(
    "graph_shared_bytes", "Memory of inputs and outputs that all passes share."
)
CAPTURED_ROUNDS = counter("captured_rounds", "Decode rounds that ran on captured passes.")
EAGER_ROUNDS = counter(
    "eager_rounds", "Decode rounds that ran without captured passes, by reason.", "reason"
)

CORE = (
    ROUNDS, REQUEST_ROUNDS, DRAFTED_TOKENS, ACCEPTED_TOKENS, EMITTED_TOKENS, PROMPT_TOKENS,
    DECODE_SECONDS, PREFILL_SECONDS, CACHE_QUERIED_TOKENS, CACHE_HIT_TOKENS, CACHE_EVICTED_PAGES,
    RETRACTED_REQUESTS, RUNNING_REQUESTS, WAITING_REQUESTS, CACHE_PAGES, KV_PAGES, NUM_STEPS,
    NUM_DRAFT_TOKENS, ACTIVE_RANGE, ACCEPT_LENGTH, LOAD,
)  # fmt: skip
GRAPHS = (
    GRAPH_BATCH_SIZES, GRAPH_BYTES, GRAPH_CAPTURE_SECONDS, GRAPH_SHARED_BYTES, CAPTURED_ROUNDS,
    EAGER_ROUNDS,
)  # fmt: skip
