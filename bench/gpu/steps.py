"""Runs an engine's steps on made-up requests, at a depth that is dictated or by its policy."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from specdecode_engine.adaptive.policy import AdaptivePolicy
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.profiling import FixedSteps, decoding

WARM_UP_STEPS = 3


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that decode together."""

    batch: int
    prompt_tokens: int
    timed_steps: int


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long steps took, and what they emitted."""

    device_s: float  # median, by events on the device
    wall_s: float  # mean, the host's share included
    kv_tokens: float  # of the whole batch, median
    tokens: int  # emitted in all timed steps
    timed_steps: int

    @property
    def tokens_per_s(self) -> float:
        """Rate of the batch."""
        return self.tokens / (self.wall_s * self.timed_steps)


@contextmanager
def decoding_under(core: EngineCore, load: Load, policy: AdaptivePolicy) -> Iterator[None]:
    """Let the load decode under a policy; ends it, and puts the engine's own policy back."""
    own, core.scheduler.drafting.policy = core.scheduler.drafting.policy, policy
    try:
        with decoding(core, load.batch, load.prompt_tokens):
            yield
    finally:
        core.scheduler.drafting.policy = own


def time_steps(
    core: EngineCore,
    load: Load,
    num_steps: int,
    clock: Callable[[], float],
    sync: Callable[[], None],
) -> StepTimes:
    """Time steps of one depth."""
    dictated = FixedSteps(num_steps)
    with decoding_under(core, load, dictated):
        for _ in range(WARM_UP_STEPS):
            core.step()
        dictated.observed.clear()
        wall_s, tokens = _run(core, load.timed_steps, clock, sync)
        observed = [one for one in dictated.observed if one.batch_size == load.batch]
    if not observed:
        raise RuntimeError(f"no step of {load.batch} requests came back: {load}")
    return StepTimes(
        device_s=statistics.median(one.seconds for one in observed),
        wall_s=wall_s / load.timed_steps,
        kv_tokens=statistics.median(one.kv_tokens for one in observed),
        tokens=tokens,
        timed_steps=load.timed_steps,
    )


@dataclass(frozen=True, slots=True)
class Rate:
    """What a batch emitted, and with which draft steps."""

    tokens_per_s: float
    steps: Mapping[int, int]  # timed steps by draft steps
    eager: int  # timed forwards that no CUDA graph computed

    @property
    def note(self) -> str:
        """Name the draft steps, and what ran eagerly."""
        chosen = ", ".join(f"{steps} x {count}" for steps, count in sorted(self.steps.items()))
        return f"draft steps {chosen}" + (f"; {self.eager} eager" if self.eager else "")


def measure_rate(
    core: EngineCore,
    load: Load,
    policy: AdaptivePolicy,
    clock: Callable[[], float],
    sync: Callable[[], None],
    learning_steps: int = 0,
) -> Rate:
    """Tokens per second under a policy, after steps of other requests for it to learn in."""
    if learning_steps:
        with decoding_under(core, load, policy):
            _run(core, learning_steps, clock, sync)
    with decoding_under(core, load, policy):
        _run(core, WARM_UP_STEPS, clock, sync)
        steps, eager = _steps(core), _eager(core)
        wall_s, tokens = _run(core, load.timed_steps, clock, sync)
        return Rate(tokens / wall_s, _steps(core) - steps, _eager(core) - eager)


def _steps(core: EngineCore) -> Counter[int]:
    steps: Counter[int] = Counter()
    for (_, num_steps), totals in core.counters.buckets.items():
        steps[num_steps] += totals.steps
    return steps


def _eager(core: EngineCore) -> int:
    return sum(core.context.graphs.report().eager_steps.values())


def _run(
    core: EngineCore, steps: int, clock: Callable[[], float], sync: Callable[[], None]
) -> tuple[float, int]:
    sync()
    started_s, tokens = clock(), 0
    for _ in range(steps):
        tokens += sum(len(output.token_ids) for output in core.step())
    sync()
    return clock() - started_s, tokens
