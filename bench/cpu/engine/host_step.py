"""What the host does in a decode step: everything of a step but the model and its sampling.

A real engine steps; only the forward of a decode step is replaced by one that returns three
tokens at once. Counted is the rest: policy, plan, pages, page tables, ends of answers, outputs.
"""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

import specdecode_engine.steps.launch as launching
from bench.cpu.engine.cells import EXAMPLES
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.proposals import Proposals
from specdecode_engine.batch.sequence import SchedulerOutput
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.profiling import decoding
from specdecode_engine.steps.in_flight import InFlightStep
from specdecode_engine.steps.model_context import ModelContext

BATCHES = (1, 16, 64, 256)
_DEPTH = 3
_ACCEPTED = 2
_PROMPT_TOKENS = 8
_WARM_UP = 10


def measure_host_steps(rounds: int) -> dict[str, float]:
    """Median microseconds of processor time per step, by batch size."""
    core = _core()
    return {str(size): _measure(core, size, rounds) for size in BATCHES}


def _core() -> EngineCore:
    speculation = {
        "algorithm": "STANDALONE",
        "draft_path": str(EXAMPLES / "draft"),
        "policy": "goodput",
        "num_steps": _DEPTH,
        "table": {"1": {"candidate_steps": [_DEPTH]}},
        "profile_seconds": 0,
    }
    document = {
        "model": {"path": str(EXAMPLES / "target")},
        "speculation": speculation,
        "scheduling": {"max_running_requests": max(BATCHES), "chunked_prefill_tokens": 4096},
        "memory": {"kv_cache_bytes": 2**31},
        "device": "cpu",
        "threads": 1,
    }
    return build_core(EngineBoot.model_validate(document))


def _measure(core: EngineCore, batch: int, rounds: int) -> float:
    times = []
    with decoding(core, batch, _PROMPT_TOKENS), _pretending(core) as launches_s:
        for number in range(_WARM_UP + rounds):
            launches_s.clear()
            began_s = time.process_time()
            outputs = core.step()
            took_s = time.process_time() - began_s - sum(launches_s)
            assert len(outputs) == batch, f"{len(outputs)} of {batch} requests decoded"
            if number >= _WARM_UP:
                times.append(took_s)
    return round(statistics.median(times) * 1e6, 1)


@contextmanager
def _pretending(core: EngineCore) -> Iterator[list[float]]:
    """Let decode steps cost nothing; yields the seconds that pretending took."""
    launch, launches_s = vars(launching)["launch_forward"], list[float]()

    def pretend(
        context: ModelContext,
        plan: SchedulerOutput,
        shape: DraftShape,
        steps: tuple[InFlightStep, ...],
        proposals: Proposals | None = None,
    ) -> None:
        began_s = time.process_time()
        batch_size = len(plan.decoding)
        tokens = torch.full((batch_size, shape.path_length), 7)
        accepted = torch.full((batch_size,), _ACCEPTED)
        steps[-1].send_tokens(plan.decoding, tokens, accepted, shape.num_steps, None)
        launches_s.append(time.process_time() - began_s)

    vars(launching)["launch_forward"] = pretend
    try:
        yield launches_s
    finally:
        vars(launching)["launch_forward"] = launch
