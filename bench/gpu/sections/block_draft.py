"""A block drafter (DFlash) next to an EAGLE-3 head: times of steps, and rates by acceptance.

The heads have random weights and the sizes of published ones, so what they draft means nothing. A
step of given shape takes the same time whatever is accepted: tokens per second at an acceptance
follow from it, and the best draft steps of one are compared with the best of the other.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from bench.cpu.dialled.heads import write_heads
from bench.cpu.peers.epsilon_pair import Size
from bench.gpu.context import Context
from bench.gpu.record import Row
from bench.gpu.scale import ModelSize
from bench.gpu.steps import Load, time_steps

EAGLE3, DFLASH = "EAGLE3", "DFLASH"
ACCEPTANCES = (0.6, 0.7, 0.8, 0.9)
"""Probability that a drafted token is accepted if those before it are."""

StepSeconds = dict[int, dict[int, float]]  # by batch size and draft steps


def measure(context: Context) -> Iterator[Row]:
    """Time the steps of both, then compare their rates."""
    context.release()
    seconds: dict[str, StepSeconds] = {}
    with TemporaryDirectory(prefix="heads-") as folder:
        heads = write_heads(
            Path(folder), _size(context.scale.model), torch.bfloat16, _drawn_on(context)
        )
        for algorithm in (EAGLE3, DFLASH):
            seconds[algorithm] = {}
            yield from _time(context, algorithm, heads[algorithm], seconds[algorithm])
            context.release()
    for batch in context.scale.head_batches:
        for acceptance in ACCEPTANCES:
            rates = {name: best_rate(found[batch], acceptance) for name, found in seconds.items()}
            (own, own_steps), (other, other_steps) = rates[DFLASH], rates[EAGLE3]
            note = f"draft steps {own_steps} and {other_steps}"
            name = f"DFlash to EAGLE-3, batch {batch}, acceptance {acceptance:g}"
            yield Row(name, own / other, "x", note=note)


def best_rate(seconds: Mapping[int, float], acceptance: float) -> tuple[float, int]:
    """Return the greatest tokens per second of a request, and its draft steps.

    Args:
        seconds: time of a step by draft steps.
    """
    rates = ((expected_tokens(acceptance, steps) / took, steps) for steps, took in seconds.items())
    return max(rates)


def expected_tokens(acceptance: float, steps: int) -> float:
    """Return the tokens of a step, the bonus token among them."""
    return 1 + sum(acceptance**step for step in range(1, steps + 1))


def _time(context: Context, algorithm: str, head: Path, found: StepSeconds) -> Iterator[Row]:
    core, scale = context.engines.with_head(algorithm, head), context.scale
    for batch in scale.head_batches:
        found[batch] = {}
        for steps in scale.head_depths:
            load = Load(batch, scale.short_prompt_tokens, scale.timed_steps)
            took = time_steps(core, load, steps, context.clock, context.sync)
            found[batch][steps] = took.device_s
            name = f"{algorithm}, draft steps {steps}, batch {batch}"
            yield Row(name, 1e3 * took.device_s, "ms", note=f"{1e3 * took.wall_s:.3f} ms with host")


def _size(model: ModelSize) -> Size:
    return Size(
        layers=model.layers,
        hidden=model.hidden,
        vocab=model.vocab,
        heads=model.heads,
        context=max(model.context, 8192),
        kv_heads=model.kv_heads,
        inner=model.inner,
    )


def _drawn_on(context: Context) -> torch.device:
    """Return where weights are drawn: a shadow device has no generator."""
    return torch.device("cpu") if context.is_dry else context.device
