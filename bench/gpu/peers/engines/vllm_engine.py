"""vLLM with its defaults, offline; requests that come and go use its asynchronous engine."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from bench.gpu.peers.cells import Load, Mode
from bench.gpu.peers.jobs.closed_loop import serve_as_they_come
from bench.gpu.peers.jobs.job_process import Setup, run_job
from bench.gpu.peers.jobs.measuring import Prompts
from bench.gpu.peers.loads import ScheduledRequest

STEPS_BY_BATCH = ((1, 8, 5), (9, 64, 3), (65, 128, 1))
"""First and last batch size, and draft steps: a table that vLLM's user has to know."""
PLAIN_KV_GIB, DRAFT_KV_GIB = 20, 10
VARIABLES = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # would be compiled for minutes
    "VLLM_USE_DEEP_GEMM": "0",  # of float8
}
ON_A_CPU = {
    "enforce_eager": True,
    "kv_cache_memory_bytes": 1 << 30,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 2048,
    "distributed_executor_backend": "uni",
}
"""One process computes, so that its processor time is all that vLLM takes."""
DRAFTS = "vllm:spec_decode_num_drafts"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens"


class VllmEngine:
    """An engine that answers batches."""

    def __init__(self, llm: Any) -> None:
        self._llm, self._seen = llm, {DRAFTS: 0.0, ACCEPTED: 0.0}

    def use(self, mode: Mode) -> None:
        """Keep the mode that it was started with."""

    def generate(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        """Answer all at once."""
        requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        outputs = self._llm.generate(requests, _sampling(tokens), use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in outputs]

    def serve(self, requests: Sequence[ScheduledRequest]) -> list[list[int]]:
        """Refuse requests that come and go.

        Raises:
            NotImplementedError: the asynchronous engine answers them.
        """
        raise NotImplementedError("requests that come and go need vLLM's asynchronous engine")

    def facts(self) -> dict[str, Any]:
        """Return the tokens per step and request, where it drafts."""
        counted = {one.name: one.value for one in self._llm.get_metrics() if one.name in self._seen}
        new = {name: counted.get(name, seen) - seen for name, seen in self._seen.items()}
        self._seen |= counted
        return {"tokens_per_step": round(1 + new[ACCEPTED] / new[DRAFTS], 3)} if new[DRAFTS] else {}


class AsyncVllmEngine:
    """An engine that answers requests as they come."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments, self._requests = arguments, 0
        self._loop = asyncio.new_event_loop()
        self._engine: Any = self._loop.run_until_complete(self._start())

    def use(self, mode: Mode) -> None:
        """Keep the mode that it was started with."""

    def generate(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        """Refuse batches.

        Raises:
            NotImplementedError: the offline engine answers them.
        """
        raise NotImplementedError("batches need vLLM's offline engine")

    def serve(self, requests: Sequence[ScheduledRequest]) -> list[list[int]]:
        """Answer requests as they come."""
        return self._loop.run_until_complete(serve_as_they_come(requests, self._answer))

    def facts(self) -> dict[str, Any]:
        """Return nothing: its counters are in another process."""
        return {}

    async def _start(self) -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        return AsyncLLM.from_engine_args(AsyncEngineArgs(**self._arguments))

    async def _answer(self, request: ScheduledRequest) -> list[int]:
        self._requests += 1
        prompt = {"prompt_token_ids": list(request.prompt)}
        sampling, tokens = _sampling(request.tokens), list[int]()
        async for output in self._engine.generate(prompt, sampling, str(self._requests)):
            tokens = list(output.outputs[0].token_ids)
        return tokens


def load() -> None:
    """Import vLLM, which imports most of it when a name is used."""
    os.environ.update(VARIABLES)
    from vllm import LLM, SamplingParams  # noqa: F401
    from vllm.v1.engine.async_llm import AsyncLLM  # noqa: F401


def start(setup: Setup) -> tuple[VllmEngine | AsyncVllmEngine, dict[str, Any]]:
    """Start the engine that the cells need."""
    import vllm

    cells = setup.cells
    arguments = engine_arguments(setup, Mode(cells[0]["mode"]))
    is_varying = any(one["load"] == Load.VARYING for one in cells)
    engine = AsyncVllmEngine(arguments) if is_varying else VllmEngine(vllm.LLM(**arguments))
    return engine, {"version": vllm.__version__}


def engine_arguments(setup: Setup, mode: Mode) -> dict[str, Any]:
    """Return the arguments of both engines."""
    speculation: dict[str, Any] | None = None
    if setup.head:
        most = max(steps for _, _, steps in STEPS_BY_BATCH)
        speculation = {
            "method": "eagle3",
            "model": setup.draft,
            "num_speculative_tokens": most if mode is Mode.BY_BATCH else 3,
        }
        if mode is Mode.BY_BATCH:
            speculation["num_speculative_tokens_per_batch_size"] = list(STEPS_BY_BATCH)
    arguments = {
        "model": setup.target,
        "skip_tokenizer_init": True,
        "dtype": setup.dtype,
        "max_model_len": 2048,
        "max_num_seqs": 128,
        "max_num_batched_tokens": 8192,
        "kv_cache_memory_bytes": (DRAFT_KV_GIB if setup.head else PLAIN_KV_GIB) << 30,
        "speculative_config": speculation,
        "disable_log_stats": False,
    }
    return arguments if setup.is_gpu else arguments | ON_A_CPU


def _sampling(tokens: int) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=0.0,
        max_tokens=tokens,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


if __name__ == "__main__":
    run_job(start, load)
