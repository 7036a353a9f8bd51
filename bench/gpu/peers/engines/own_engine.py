"""This project's engine, in process: plain, or with a head at 0, 1, 3 and 7 draft steps."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from bench.gpu.peers.cells import Mode
from bench.gpu.peers.jobs.job_process import Setup, run_job
from bench.gpu.peers.jobs.measuring import Prompts
from bench.gpu.peers.loads import ScheduledRequest
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.profiling import FixedSteps

CANDIDATES = (0, 1, 3, 7)
FIXED = {Mode.FIXED_1: 1, Mode.FIXED_3: 3, Mode.FIXED_7: 7}
GRAPH_BATCHES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
PLAIN_KV_GIB, DRAFT_KV_GIB = 19, 10


class OwnEngine:
    """An engine whose policy is exchanged between cells."""

    def __init__(self, core: EngineCore) -> None:
        self._core, self._requests = core, 0
        self._adaptive = core.scheduler.drafting.policy
        self._seen: dict[int, int] = {}

    def use(self, mode: Mode) -> None:
        """Dictate draft steps, or let the engine's own policy choose."""
        steps = FIXED.get(mode)
        policy = self._adaptive if steps is None else FixedSteps(steps)
        self._core.scheduler.drafting.policy = policy

    def generate(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        """Answer all at once."""
        requests = [ScheduledRequest(tuple(one), tokens, len(prompts), 0) for one in prompts]
        return self.serve(requests)

    def serve(self, requests: Sequence[ScheduledRequest]) -> list[list[int]]:
        """Answer requests as they come."""
        answers: dict[str, list[int]] = {}
        waiting, running = [*reversed(requests)], 0
        while waiting or self._core.has_work():
            while waiting and running < waiting[-1].running:
                answers[self._submit(waiting.pop())] = []
                running += 1
            for output in self._core.step():
                answers[output.request_id] += output.token_ids
                running -= output.finish_reason is not None
        return list(answers.values())

    def facts(self) -> dict[str, Any]:
        """Return the number of steps by draft steps."""
        counted: dict[int, int] = {}
        for (_, num_steps), totals in self._core.counters.buckets.items():
            counted[num_steps] = counted.get(num_steps, 0) + totals.steps
        new = {steps: count - self._seen.get(steps, 0) for steps, count in counted.items()}
        self._seen = counted
        return {"steps_by_num_steps": {str(steps): one for steps, one in new.items() if one}}

    def _submit(self, request: ScheduledRequest) -> str:
        self._requests += 1
        name = str(self._requests)
        sampling = SamplingParams(0, request.tokens, 0.0, ignore_eos=True)
        self._core.submit(Request(name, request.prompt, sampling))
        return name


def start(setup: Setup) -> tuple[OwnEngine, dict[str, Any]]:
    """Build the engine."""
    core = build_core(EngineBoot.model_validate(boot_document(setup)))
    return OwnEngine(core), {"version": _version(), "torch": torch.__version__}


def boot_document(setup: Setup) -> dict[str, Any]:
    """Return the engine's configuration; on a GPU without FlashInfer, which would be compiled."""
    speculation: dict[str, Any] = {}
    if setup.head:
        speculation = {
            "algorithm": "EAGLE3",
            "draft_path": setup.draft,
            "num_steps": CANDIDATES[-1],
            "policy": "goodput",
            "profile_seconds": 8.0 if setup.is_gpu else 0.5,
            "table": {"1": {"candidate_steps": list(CANDIDATES)}},
        }
    kv_bytes = (DRAFT_KV_GIB if setup.head else PLAIN_KV_GIB) << 30
    document = {
        "model": {"path": setup.target, "context_length": 2048},
        "speculation": speculation,
        "memory": {"kv_cache_bytes": kv_bytes},
        "scheduling": {"max_running_requests": 128, "chunked_prefill_tokens": 8192},
    }
    if setup.is_gpu:
        graphs = {"mode": "cuda", "batch_sizes": list(GRAPH_BATCHES), "max_seconds": 40}
        return document | {"graphs": graphs, "device": "cuda", "attention_backend": "triton"}
    context, kv_bytes, tokens = (2048, 256 << 20, 2048) if setup.model else (256, 64 << 20, 512)
    document["model"] = {"path": setup.target, "dtype": setup.dtype, "context_length": context}
    document["memory"] = {"kv_cache_bytes": kv_bytes}
    document["scheduling"] = {"max_running_requests": 8, "chunked_prefill_tokens": tokens}
    return document | {"device": "cpu", "threads": 1}


def _version() -> str:
    try:
        return version("specdecode-engine")
    except PackageNotFoundError:  # a checkout that travelled without being installed
        return "of the checkout"


if __name__ == "__main__":
    run_job(start)
