"""Steps on CUDA graphs against eager ones, on the example models: equal answers, and times."""

from collections.abc import Iterator

from bench.cpu.graphs.gpu import GpuResult, compare
from bench.gpu.context import Context
from bench.gpu.record import Row
from bench.gpu.targets import SAME_ANSWERS


def measure(context: Context) -> Iterator[Row]:
    """Compare each drafter, chain and tree, in float64 where equality is exact."""
    for algorithm, topk in context.scale.captured_kinds:
        if not context.has_time(2):
            return
        dtype, tokens = context.scale.capture_dtype, context.scale.captured_answer_tokens
        result = compare(algorithm, topk, context.device.type, dtype, tokens)
        yield from _rows(result)


def _rows(result: GpuResult) -> Iterator[Row]:
    name = f"{result.algorithm}, topk {result.topk}, {result.dtype}"
    note = f"{result.graph_steps} steps on graphs, {result.eager_steps} eager"
    yield Row(f"{name}: answers equal", float(result.is_good), "", target=SAME_ANSWERS, note=note)
    yield Row(f"{name}: step", result.step_ms, "ms", peers={"eager": result.eager_step_ms})
