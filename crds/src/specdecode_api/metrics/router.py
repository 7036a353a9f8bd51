"""Metrics of routers; `engine` is the pod of an engine, or its address without Kubernetes."""

from typing import Final

from specdecode_api.metrics.form import counter, gauge, histogram

ENGINE_LABEL: Final = "engine"

ROUTER_ENGINES = gauge(
    "router_engines", "Engines that the router knows, by state: ready, not_ready, open.", "state"
)
ROUTER_RUNNING_REQUESTS = gauge(
    "router_running_requests", "Requests of this router that an engine computes.", ENGINE_LABEL
)
ROUTER_HELD_REQUESTS = gauge(
    "router_held_requests", "Requests that wait because no engine can take them."
)
ROUTER_PREFIX_BLOCKS = gauge("router_prefix_blocks", "Blocks of prompts in the prefix table.")
ROUTER_ATTEMPTS = counter(
    "router_attempts",
    "Calls sent to engines, by result: complete, refused, busy, unreachable, lost, stalled, "
    "draining, failed, disconnected.",
    ENGINE_LABEL,
    "result",
)
ROUTER_CHOICES = counter(
    "router_choices",
    "Engines chosen, by reason: prefix (longest known beginning), hash (of session or prompt), "
    "load (the preferred engine had too much), only (there was no other), stored (it stores the "
    "response that the request continues).",
    "reason",
)
ROUTER_RESUMED = counter(
    "router_resumed",
    "Answers that another engine continued, by the reason why the first one was lost.",
    "reason",
)
ROUTER_RESTARTED = counter(
    "router_restarted",
    "Answers of which nothing was sent and which were generated again from their beginning, by "
    "the reason why the engine was lost.",
    "reason",
)
ROUTER_UNRESUMABLE = counter(
    "router_unresumable",
    "Streams that ended with an error, because no engine could continue them: retries, resume_id, "
    "unknown_id, refused, deadline, runtime (engines of vLLM continue none).",
    "reason",
)
ROUTER_HELD = counter("router_held", "Requests that had to wait for an engine.")
ROUTER_RESPONSES = counter(
    "router_responses", "Responses to generation requests, by HTTP status.", "status"
)
ROUTER_PROMPT_BLOCKS = counter(
    "router_prompt_blocks",
    "Blocks of 512 characters in prompts: matched were known on the chosen engine, new were not.",
    "result",
)
ROUTER_FIRST_EVENT_SECONDS = histogram(
    "router_first_event_seconds",
    "Time from the arrival of a request to the first event of an engine.",
    (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)

ROUTER: Final = (
    ROUTER_ENGINES, ROUTER_RUNNING_REQUESTS, ROUTER_HELD_REQUESTS, ROUTER_PREFIX_BLOCKS,
    ROUTER_ATTEMPTS, ROUTER_CHOICES, ROUTER_RESUMED, ROUTER_RESTARTED, ROUTER_UNRESUMABLE,
    ROUTER_HELD, ROUTER_RESPONSES, ROUTER_PROMPT_BLOCKS, ROUTER_FIRST_EVENT_SECONDS,
)  # fmt: skip
"""All metrics of a router."""
