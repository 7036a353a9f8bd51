"""The metrics of one engine of vLLM at one time, as a reading of the fleet.

Of vLLM 0.32.0, from its own exposition. `EVIDENCE` has what each figure of the fleet is there.
"""

import math
from dataclasses import dataclass
from typing import Final

from specdecode_operator.fleet.exposition import BadScrape, Samples
from specdecode_operator.fleet.reading import Reading
from specdecode_operator.judge.evidence import ArmEvidence, ArmKey

GENERATED: Final = "vllm:generation_tokens_total"
FIRST_TOKENS: Final = "vllm:time_to_first_token_seconds_count"
STEPS: Final = "vllm:inter_token_latency_seconds_count"
STEP_SECONDS: Final = "vllm:inter_token_latency_seconds_sum"
RUNNING: Final = "vllm:num_requests_running"
WAITING: Final = "vllm:num_requests_waiting"
KV_USE: Final = "vllm:kv_cache_usage_perc"
DRAFTED: Final = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED: Final = "vllm:spec_decode_num_accepted_tokens_total"
VERIFICATIONS: Final = "vllm:spec_decode_num_drafts_total"
START: Final = "process_start_time_seconds"


@dataclass(frozen=True, slots=True)
class FleetMetric:
    """One figure of the fleet: the metrics that it is made of, and what must be known of them."""

    figure: str
    metrics: tuple[str, ...]
    note: str
    is_required: bool = True
    """Whether a response without it is none of a supported version."""


EVIDENCE: Final = (
    FleetMetric(
        "start of the process",
        (START,),
        "counters begin at 0 there; several API servers (data parallelism) do not export it, and "
        "the start of the container counts",
        is_required=False,
    ),
    FleetMetric(
        "requests",
        (FIRST_TOKENS,),
        "counted by their first token: those that clients give up are in no counter of requests",
    ),
    FleetMetric("tokens of decode steps", (GENERATED, FIRST_TOKENS), "all but first tokens"),
    FleetMetric(
        "steps of requests",
        (STEPS,),
        "the histogram of gaps observes steps, not tokens; so it is never judged as time per token",
    ),
    FleetMetric(
        "time per token",
        (STEP_SECONDS, GENERATED, FIRST_TOKENS),
        "seconds of steps by tokens of decode steps; request_time_per_output_token_seconds "
        "observes 0 for an answer of one token and is not used",
    ),
    FleetMetric("running and waiting requests", (RUNNING, WAITING), "gauges, fresh at once"),
    FleetMetric("KV use", (KV_USE,), "from 0 to 1"),
    FleetMetric(
        "drafted, accepted and verified tokens",
        (DRAFTED, ACCEPTED, VERIFICATIONS),
        "there with speculation only",
        is_required=False,
    ),
)
"""A row for each figure that the fleet takes from vLLM."""

READ: Final = frozenset(name for row in EVIDENCE for name in row.metrics)
"""Names of the samples that a reading is made of."""


@dataclass(frozen=True, slots=True)
class VllmTotals:
    """What an engine of vLLM has counted since it started; `None`: this version does not."""

    requests: float
    decode_tokens: float
    request_steps: float
    step_seconds: float
    running: float
    waiting: float
    kv_use: float
    drafted: float | None
    accepted: float | None
    verifications: float | None

    @property
    def seconds_per_token(self) -> float | None:
        """Mean time of a token after the first; None before there is one."""
        return self.step_seconds / self.decode_tokens if self.decode_tokens else None


def totals_of(found: Samples) -> VllmTotals:
    """Read the totals, added over the copies of the model in the pod.

    Raises:
        BadScrape: a metric that every supported version exports is missing or no amount.
    """
    missing = [
        name for row in EVIDENCE if row.is_required for name in row.metrics if not found.get(name)
    ]
    if missing:
        raise BadScrape(
            f"the response has no {missing[0]}: is it vLLM of a supported version, without "
            "--disable-log-stats?"
        )
    first = _sum(found, FIRST_TOKENS)
    return VllmTotals(
        requests=first,
        # A reader between two updates may see a first token that is not generated yet.
        decode_tokens=max(_sum(found, GENERATED) - first, 0.0),
        request_steps=_sum(found, STEPS),
        step_seconds=_sum(found, STEP_SECONDS),
        running=_sum(found, RUNNING),
        waiting=_sum(found, WAITING),
        kv_use=max(_amount(KV_USE, each.value) for each in found[KV_USE]),
        drafted=_optional(found, DRAFTED),
        accepted=_optional(found, ACCEPTED),
        verifications=_optional(found, VERIFICATIONS),
    )


def vllm_reading(
    pod_uid: str, config_hash: str, found: Samples, container_start_s: float = 0.0
) -> Reading:
    """Build the reading of one pod. It has no evidence by arm: trials are not available.

    Args:
        config_hash: of the pod, which vLLM does not know.
        container_start_s: since 1970, for a response without the start of the process.

    Raises:
        BadScrape: see `totals_of`.
    """
    totals = totals_of(found)
    start_s = _optional(found, START)
    key = ArmKey(config_hash, "")
    return Reading(
        pod_uid=pod_uid,
        start_s=container_start_s if start_s is None else start_s,
        key=key,
        arms={key: ArmEvidence()},
        emitted_tokens=totals.decode_tokens,
        request_steps=totals.request_steps,
    )


def _optional(found: Samples, name: str) -> float | None:
    return _sum(found, name) if found.get(name) else None


def _sum(found: Samples, name: str) -> float:
    return sum(_amount(name, each.value) for each in found[name])


def _amount(name: str, value: float) -> float:
    if not 0.0 <= value < math.inf:
        raise BadScrape(f"the response cannot be read: {name} is {value}")
    return value
