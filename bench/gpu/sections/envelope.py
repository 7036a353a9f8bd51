"""G8: the adaptive policy against every fixed depth and no draft, by batch and agreement."""

from collections.abc import Iterator

from bench.gpu.context import Context
from bench.gpu.engines import STRONG, WEAK
from bench.gpu.record import Row
from bench.gpu.steps import Load, Rate, measure_rate
from bench.gpu.targets import TO_BEST_STATIC, TO_NO_SPECULATION
from specdecode_engine.startup.profiling import FixedSteps

BATCH_S = 15
"""What the arms of one batch size may take."""


def measure(context: Context) -> Iterator[Row]:
    """Measure every arm in turn for each batch size; a batch that has begun is finished."""
    scale = context.scale
    context.engines.adaptive()
    context.engines.plain()
    for name, epsilon in (("weak", WEAK), ("strong", STRONG)):
        context.engines.agree(epsilon)
        for batch in (*scale.batches, scale.most_running):
            if not context.has_time(BATCH_S):
                return
            steps = max(scale.timed_steps, scale.fewest_tokens // batch)
            load = Load(batch, scale.short_prompt_tokens, steps)
            yield from _rows(f"{name} draft, batch {batch}", _rates(context, load))


def _rates(context: Context, load: Load) -> dict[str, Rate]:
    """Time every arm once."""
    core, plain = context.engines.adaptive(), context.engines.plain()
    arms = {f"depth {steps}": (core, FixedSteps(steps)) for steps in context.scale.depths}
    arms["no draft"] = (plain, FixedSteps(0))
    rates = {
        name: measure_rate(core, load, policy, context.clock, context.sync)
        for name, (core, policy) in arms.items()
    }
    policy, learning = core.scheduler.drafting.policy, context.scale.learning_steps
    adaptive = measure_rate(core, load, policy, context.clock, context.sync, learning)
    return {**rates, "adaptive": adaptive}


def _rows(name: str, arms: dict[str, Rate]) -> Iterator[Row]:
    rates = {arm: rate.tokens_per_s for arm, rate in arms.items()}
    adaptive, plain = rates["adaptive"], rates["no draft"]
    best = max(rate for arm, rate in rates.items() if arm.startswith("depth"))
    note = arms["adaptive"].note
    yield Row(f"{name}: adaptive", adaptive, "tokens/s", peers=rates, note=note)
    yield Row(f"{name}: to the best fixed", adaptive / best, "x", target=TO_BEST_STATIC)
    yield Row(f"{name}: to no draft", adaptive / plain, "x", target=TO_NO_SPECULATION)
