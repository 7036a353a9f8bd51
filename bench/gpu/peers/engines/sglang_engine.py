"""SGLang's engine with its defaults, but for fewer sizes of CUDA graphs."""

import os
from collections.abc import Sequence
from typing import Any

from bench.gpu.peers.cells import Mode
from bench.gpu.peers.jobs.closed_loop import serve_as_they_come
from bench.gpu.peers.jobs.job_process import Setup, run_job
from bench.gpu.peers.jobs.measuring import Prompts
from bench.gpu.peers.loads import ScheduledRequest

PREFILL_GRAPHS = (256, 512, 1024, 2048, 4096, 8192)
"""Those that the loads are padded to, of 58 by default: less time at start."""
DECODE_GRAPHS = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128)
"""With a draft, of 36 by default: each is captured for every number of draft steps."""


class SglangEngine:
    """An engine that answers batches, and requests as they come."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._steps = self._tokens = 0

    def use(self, mode: Mode) -> None:
        """Keep the mode that it was started with."""

    def generate(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        """Answer all at once."""
        outputs = self._engine.generate(
            input_ids=[list(prompt) for prompt in prompts], sampling_params=_sampling(tokens)
        )
        return [self._tokens_of(one, tokens) for one in outputs]

    def serve(self, requests: Sequence[ScheduledRequest]) -> list[list[int]]:
        """Answer requests as they come."""
        answers: list[list[int]] = self._engine.loop.run_until_complete(
            serve_as_they_come(requests, self._answer)
        )
        return answers

    def facts(self) -> dict[str, Any]:
        """Return the tokens per step and request, where it drafts."""
        steps, tokens = self._steps, self._tokens
        self._steps = self._tokens = 0
        return {"tokens_per_step": round(tokens / steps, 3)} if steps else {}

    async def _answer(self, request: ScheduledRequest) -> list[int]:
        output = await self._engine.async_generate(
            input_ids=list(request.prompt), sampling_params=_sampling(request.tokens)
        )
        return self._tokens_of(output, request.tokens)

    def _tokens_of(self, output: dict[str, Any], tokens: int) -> list[int]:
        about = output["meta_info"]
        self._steps += about.get("spec_verify_ct") or 0
        self._tokens += about["completion_tokens"] - 1  # the first one is that of prefill
        return list(output["output_ids"])[-tokens:]


def load() -> None:
    """Import SGLang, which imports its engine when it is used."""
    os.environ.setdefault("SGLANG_ENABLE_JIT_DEEPGEMM", "0")  # of float8
    from sglang.srt.entrypoints.engine import Engine  # noqa: F401


def start(setup: Setup) -> tuple[SglangEngine, dict[str, Any]]:
    """Start the engine."""
    import sglang

    mode = Mode(setup.cells[0]["mode"])
    engine = sglang.Engine(**engine_arguments(setup, mode))
    return SglangEngine(engine), {"version": sglang.__version__}


def engine_arguments(setup: Setup, mode: Mode) -> dict[str, Any]:
    """Return the arguments of the engine."""
    arguments = {
        "model_path": setup.target,
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "context_length": 2048,
        "max_running_requests": 128,
        "cuda_graph_max_bs_decode": 128,
        "cuda_graph_bs_prefill": list(PREFILL_GRAPHS),
        "chunked_prefill_size": 8192,
        "mem_fraction_static": 0.8,
        "sampling_backend": "pytorch",  # without FlashInfer's, which would be compiled
        "log_level": "info",
    }
    if setup.head:
        arguments |= {
            "speculative_algorithm": "EAGLE3",
            "speculative_draft_model_path": setup.draft,
            "speculative_num_steps": 3,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": 4,
            "cuda_graph_bs_decode": list(DECODE_GRAPHS),
            "speculative_adaptive": mode is Mode.ADAPTIVE,
        }
    return arguments


def _sampling(tokens: int) -> dict[str, Any]:
    return {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}


if __name__ == "__main__":
    run_job(start, load)
