"""CUDA graphs on a GPU: equal answers with and without, bytes and seconds, time of a step.

Float64 makes equality exact, since rounding then never decides between two tokens. Not a test of
pytest: the machines that run those have no GPU.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.adaptive.policy import Decision, Reason, StaticPolicy
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "models"
FOLDERS = {"STANDALONE": "draft", "EAGLE": "eagle", "EAGLE3": "eagle3"}
TABLE = {"1": (1, 3, 6), "3": (0, 2), "6": (0,)}
BATCHES = (1, 2, 3, 5, 8)
ANSWER_TOKENS = 48


@dataclass(frozen=True, slots=True)
class GpuResult:
    """One drafter with graphs and without."""

    algorithm: str
    topk: int
    dtype: str
    equal: bool
    graph_steps: int
    eager_steps: int  # of the engine with graphs
    graph_bytes: int
    capture_seconds: float
    step_ms: float  # of decoding, with graphs
    eager_step_ms: float

    @property
    def is_good(self) -> bool:
        """Whether every step ran on graphs and no answer changed."""
        return self.equal and self.graph_steps > 0 and self.eager_steps == 0


class EveryNumSteps(StaticPolicy):
    """Takes the candidates of the batch's range in turn."""

    def decide(self, batch_size: int, kv_tokens: int, prefill_s: float = 0.0) -> Decision:
        """Choose by how much has been computed, so that two engines choose alike."""
        entry = self.table.range_of(batch_size)
        steps = entry.candidate_steps[kv_tokens % len(entry.candidate_steps)]
        return Decision(steps, entry.lower_bound, 0, Reason.STATIC)


def check(device: str = "cuda", dtype: str = "float64") -> Iterator[GpuResult]:
    """Compare for every drafter, chain and tree; `device` cpu tries the comparison itself out."""
    for algorithm in FOLDERS:
        for topk in (1, 4):
            yield compare(algorithm, topk, device, dtype)


def compare(
    algorithm: str, topk: int, device: str, dtype: str, answer_tokens: int = ANSWER_TOKENS
) -> GpuResult:
    """Run every batch with graphs and without."""
    mode = "cuda" if device == "cuda" else "static"
    captured, eager = (_core(algorithm, topk, device, dtype, wanted) for wanted in (mode, "off"))
    answers, step_s = _run(captured, answer_tokens)
    plain_answers, plain_step_s = _run(eager, answer_tokens)
    report = captured.context.graphs.report()
    return GpuResult(
        algorithm,
        topk,
        dtype,
        equal=answers == plain_answers,
        graph_steps=report.graph_steps,
        eager_steps=sum(report.eager_steps.values()),
        graph_bytes=report.num_bytes,
        capture_seconds=report.seconds,
        step_ms=1000 * step_s,
        eager_step_ms=1000 * plain_step_s,
    )


def _core(algorithm: str, topk: int, device: str, dtype: str, mode: str) -> EngineCore:
    document = {
        "model": {"path": str(EXAMPLES / "target"), "dtype": dtype},
        "speculation": {
            "algorithm": algorithm,
            "draft_path": str(EXAMPLES / FOLDERS[algorithm]),
            "num_steps": 3,
            "topk": topk,
            "policy": "ema",
            "table": {bound: {"candidate_steps": steps} for bound, steps in TABLE.items()},
        },
        "scheduling": {"max_running_requests": max(BATCHES)},
        "graphs": {"mode": mode, "batch_sizes": (1, 2, 4, 5, 6, 8)},
        "device": device,
    }
    core = build_poisoned(EngineBoot.model_validate(document))
    core.scheduler.drafting.policy = EveryNumSteps(0, core.scheduler.drafting.policy.table)
    return core


def _run(core: EngineCore, answer_tokens: int) -> tuple[dict[str, list[int]], float]:
    """Run every batch; the answers, and the seconds of a step after the first batch, a warm-up."""
    answers: dict[str, list[int]] = {}
    started_s, steps = time.monotonic(), 0
    for place, size in enumerate((BATCHES[0], *BATCHES)):
        if place == 1:
            started_s, steps = time.monotonic(), core.counters.decode.steps
        for number in range(size):
            name = f"{place}/{number}"
            prompt = tuple(5 + (number * 31 + step * 7) % 200 for step in range(3 + 4 * number))
            params = SamplingParams(
                seed=number,
                max_tokens=answer_tokens,
                temperature=0.8 * (number % 2),
                ignore_eos=True,
            )
            core.submit(Request(name, prompt, params))
            answers[name] = []
        while core.has_work():
            for output in core.step():
                answers[output.request_id] += output.token_ids
    return answers, (time.monotonic() - started_s) / (core.counters.decode.steps - steps)
