"""Metrics of the engine core: steps, tokens, seconds, KV cache, CUDA graphs."""

from typing import Final

from specdecode_api.metrics.form import counter, gauge, histogram

TABLE: Final = "table"
"""Label with the hash of the speculation table in use."""

DECODE_STEPS = counter("decode_steps", "Decode steps.")
REQUEST_STEPS = counter("request_steps", "Decode steps, counted once per request in the batch.")
DRAFTED_TOKENS = counter("drafted_tokens", "Draft tokens proposed.")
DRAFTED_REQUEST_STEPS = counter(
    "drafted_request_steps",
    "Decode steps, counted once per request with a draft token; NGRAM drafts none where nothing "
    "matches.",
)
VERIFIED_TOKENS = counter(
    "verified_tokens", "Draft tokens verified by the target; a step may leave out some."
)
VERIFY_ROWS = histogram(
    "verify_rows",
    "Rows that the target verified for a request in a decode step: its verified draft tokens and "
    "the row of the bonus token.",
    (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128),
)
ACCEPTED_TOKENS = counter("accepted_tokens", "Draft tokens accepted by the target.")
SOURCE_DRAFTED_TOKENS = counter(
    "source_drafted_tokens", "Draft tokens proposed, by source: model or ngram.", "source"
)
SOURCE_ACCEPTED_TOKENS = counter(
    "source_accepted_tokens",
    "Draft tokens accepted by the target, by source: model or ngram.",
    "source",
)
EMITTED_TOKENS = counter("emitted_tokens", "Output tokens of decode steps.")
PROMPT_TOKENS = counter("prompt_tokens", "Prompt tokens prefilled.")
DECODE_SECONDS = counter("decode_seconds", "Seconds spent in decode steps.")
PREFILL_SECONDS = counter("prefill_seconds", "Seconds spent in prefill.")
CACHE_QUERIED_TOKENS = counter(
    "prefix_cache_queried_tokens",
    "Prompt tokens of admitted requests; a preempted request is admitted and counted again.",
)
CACHE_HIT_TOKENS = counter(
    "prefix_cache_hit_tokens",
    "Prompt tokens of admitted requests whose KV pages were in the prefix cache.",
)
CACHE_EVICTED_PAGES = counter("prefix_cache_evicted_pages", "Cached pages evicted to free memory.")
KERNEL_COMPILES = counter(
    "kernel_compiles_after_ready",
    "Triton kernels compiled while serving; each delays a step by seconds.",
)
PREEMPTED_REQUESTS = counter(
    "preempted_requests",
    "Requests preempted and queued again because the KV cache was full.",
    TABLE,
)
OBJECTIVE_UNREACHABLE_STEPS = counter(
    "objective_unreachable_steps",
    "Decode steps expected to take longer than maxInterTokenMs even without a draft.",
)
OUT_OF_MEMORY_STEPS = counter(
    "out_of_memory_steps",
    "Steps that ran out of the device's memory, by outcome: retried without the youngest request, "
    "or failed.",
    "outcome",
)

RUNNING_REQUESTS = gauge("running_requests", "Running requests.")
WAITING_REQUESTS = gauge("waiting_requests", "Requests waiting for a slot or for KV cache.")
CACHE_PAGES = gauge("prefix_cache_pages", "Pages in the prefix cache.")
KV_PAGES = gauge("kv_pages", "Pages of the KV cache by state.", "state")
KV_CACHE_USAGE = gauge(
    "kv_cache_usage",
    "Share of the KV cache's pages that running requests use, from 0 to 1; cached pages that can "
    "be evicted count as free.",
)
CACHE_CONFIG_INFO = gauge(
    "cache_config_info",
    "Always 1; the labels, named as endpoint pickers of a Gateway read them, are the tokens of a "
    "page and the number of pages.",
    "block_size",
    "num_gpu_blocks",
)
KV_WINDOW_PAGES = gauge(
    "kv_window_pages",
    "Pages of layers with a sliding window by state: used, reserved for running requests, free; "
    "only of models with such layers.",
    "state",
)
NUM_STEPS = gauge("num_steps", "Draft steps of the latest decode step.")
NUM_DRAFT_TOKENS = gauge(
    "num_draft_tokens", "Nodes verified in the latest decode step, root included."
)
ACTIVE_RANGE = gauge(
    "active_range", "Lower bound of the batch-size range that chose its draft steps."
)
ACCEPT_LENGTH = gauge(
    "accept_length", "Output tokens per request and decode step, since the start."
)
LOAD = gauge(
    "load", "Load: (running + waiting requests) / (max running requests × recent accept length)."
)
DRAFT_UNFIT = gauge(
    "draft_unfit",
    "1 if the draft does not fit the target: the engine decodes without it, except for probes.",
)
DRAFT_PROBES = counter("draft_probes", "Requests that probed an unfit draft.")

GRAPH_BATCH_SIZES = gauge(
    "graph_batch_sizes", "Batch sizes with a captured CUDA graph, by draft steps.", "num_steps"
)
GRAPH_BYTES = gauge(
    "graph_bytes",
    "Memory of the CUDA graphs, by draft steps; a graph that several share counts once.",
    "num_steps",
)
GRAPH_CAPTURE_SECONDS = gauge(
    "graph_capture_seconds", "Time to capture the CUDA graphs, by draft steps.", "num_steps"
)
GRAPH_SHARED_BYTES = gauge(
    "graph_shared_bytes", "Memory of the input and output buffers that all CUDA graphs share."
)
GRAPH_STEPS = counter("graph_steps", "Decode steps that replayed CUDA graphs.")
GRAPH_CAPTURE_FAILED = gauge(
    "graph_capture_failed", "1 if an error ended the capture of CUDA graphs; steps run eagerly."
)
EAGER_STEPS = counter("eager_steps", "Decode steps that ran eagerly, by reason.", "reason")

CORE = (
    DECODE_STEPS, REQUEST_STEPS, DRAFTED_TOKENS, DRAFTED_REQUEST_STEPS, VERIFIED_TOKENS,
    VERIFY_ROWS, ACCEPTED_TOKENS, EMITTED_TOKENS, SOURCE_DRAFTED_TOKENS, SOURCE_ACCEPTED_TOKENS,
    PROMPT_TOKENS, DECODE_SECONDS, PREFILL_SECONDS, CACHE_QUERIED_TOKENS, CACHE_HIT_TOKENS,
    CACHE_EVICTED_PAGES, KERNEL_COMPILES, PREEMPTED_REQUESTS, OBJECTIVE_UNREACHABLE_STEPS,
    OUT_OF_MEMORY_STEPS,
    RUNNING_REQUESTS, WAITING_REQUESTS, CACHE_PAGES, KV_PAGES, KV_CACHE_USAGE, CACHE_CONFIG_INFO,
    KV_WINDOW_PAGES,
    NUM_STEPS, NUM_DRAFT_TOKENS, ACTIVE_RANGE, ACCEPT_LENGTH, LOAD, DRAFT_UNFIT, DRAFT_PROBES,
)  # fmt: skip
GRAPHS = (
    GRAPH_BATCH_SIZES, GRAPH_BYTES, GRAPH_CAPTURE_SECONDS, GRAPH_SHARED_BYTES,
    GRAPH_CAPTURE_FAILED, GRAPH_STEPS, EAGER_STEPS,
)  # fmt: skip
