"""G9: in large batches, steps that verify fewer tokens than they draft, against those that do not.

The draft's probabilities divide the verified tokens over the requests (`verifyTokens`).
"""

from collections.abc import Iterator

from bench.gpu.context import Context
from bench.gpu.engines import STRONG, WEAK
from bench.gpu.record import Row
from bench.gpu.steps import Load, measure_rate
from specdecode_engine.startup.profiling import FixedSteps


def measure(context: Context) -> Iterator[Row]:
    """Time every number of draft steps; those above `verify_tokens` verify as many on average."""
    context.release()
    scale = context.scale
    core = context.engines.divided()
    for name, epsilon in (("weak", WEAK), ("strong", STRONG)):
        context.engines.agree(epsilon)
        for batch in (scale.batches[-1], scale.most_running):
            load = Load(batch, scale.short_prompt_tokens, scale.timed_steps)
            rates, eager = {}, 0
            for steps in scale.divided_depths:
                dictated = FixedSteps(steps)
                dictated.verify_tokens = scale.verify_tokens
                rate = measure_rate(core, load, dictated, context.clock, context.sync)
                rates[steps], eager = rate.tokens_per_s, eager + rate.eager
            yield _row(f"{name} draft, batch {batch}", rates, scale.verify_tokens, eager)


def _row(name: str, rates: dict[int, float], verified: int, eager: int) -> Row:
    best = max(rate for steps, rate in rates.items() if steps > verified)
    whole = max(rate for steps, rate in rates.items() if steps <= verified)
    peers = {f"depth {steps}": rate for steps, rate in rates.items()}
    note = f"{eager} eager" if eager else ""
    metric = f"{name}, verifying {verified}: to the best that verifies its whole draft"
    return Row(metric, best / whole, "x", peers=peers, note=note)
