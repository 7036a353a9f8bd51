"""Whether the host waits for the device in steady steps, and which backends these run on."""

from collections.abc import Iterator

import torch

from bench.gpu.context import Context
from bench.gpu.record import Row
from bench.gpu.steps import WARM_UP_STEPS, Load, decoding_under
from bench.gpu.targets import WAITS
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.profiling import FixedSteps

STEPS = 8
"""New pages are among them: a page holds 16 tokens."""


def measure(context: Context) -> Iterator[Row]:
    """Name the backends, then let torch raise where a steady step would wait."""
    began_s = context.clock()
    core = context.engines.adaptive()
    yield Row("engine built, captured and profiled", context.clock() - began_s, "s")
    yield from _backends(core)
    for steps in context.scale.depths:
        for batch in context.scale.batches:
            load = Load(batch, context.scale.short_prompt_tokens, STEPS)
            error = find_wait(core, load, steps)
            name = f"waits in steady steps, depth {steps}, batch {batch}"
            yield Row(name, float(error is not None), "", target=WAITS, note=error or "")
            if error is not None:  # the engine was left in the middle of a step
                context.release()
                core = context.engines.adaptive()


def _backends(core: EngineCore) -> Iterator[Row]:
    yield Row("ops but attention", 1, core.context.ops.name)
    for model in ("target", "draft"):
        forwards = core.facts[f"{model}_attention_by_forward"]
        assert isinstance(forwards, dict)
        for forward, chosen in forwards.items():
            yield Row(f"{model}, {forward}", 1, chosen["backend"], note=chosen["reason"])


def find_wait(core: EngineCore, load: Load, num_steps: int) -> str | None:
    """Return torch's error of the first steady step that waits, None if none does.

    Waiting for the event that collects a step's result is none: torch does not count it.
    """
    with decoding_under(core, load, FixedSteps(num_steps)):
        for _ in range(WARM_UP_STEPS):
            core.step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(load.timed_steps):
                core.step()
        except RuntimeError as error:
            return str(error).partition("\n")[0]
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return None
