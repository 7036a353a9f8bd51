"""Measures the cost of steps at start: real steps over synthetic requests, before serving begins.

The steps run in the engine and its KV cache; only the draft steps are dictated. Combinations of
batch size and draft steps that the table cannot reach are left out, and a time budget limits the
measurement: unmeasured costs are interpolated and learned while serving.
"""

import logging
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from specdecode_engine.adaptive.cost import CostPoint
from specdecode_engine.adaptive.policy import (
    AdaptivePolicy,
    Decision,
    Feedback,
    Reason,
    StaticPolicy,
)
from specdecode_engine.adaptive.table import all_steps
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.engine import EngineCore
from specdecode_engine.process.start_progress import ShowProgress, progress_bar
from specdecode_engine.ranks import shared_clock
from specdecode_engine.schedule.drafting import Drafting
from specdecode_engine.schedule.limits import Limits
from specdecode_engine.schedule.prefix_cache import PrefixCache
from specdecode_engine.schedule.scheduler import Scheduler
from specdecode_engine.steps.model_context import ModelContext
from specdecode_engine.steps.timing import Stopwatch

log = logging.getLogger(__name__)

PROMPT_TOKENS = 16
LONG_PROMPT_TOKENS = 1024
WARM_UP_STEPS = 1
TIMED_STEPS = 3


class FixedSteps(StaticPolicy):
    """Runs every step with the given draft steps and keeps the feedback."""

    def __init__(self, num_steps: int) -> None:
        super().__init__(num_steps)
        self.num_steps = num_steps
        self.verify_tokens: int | None = None
        self.observed: list[Feedback] = []

    def decide(self, batch_size: int, kv_tokens: int, prefill_s: float = 0.0) -> Decision:
        return Decision(self.num_steps, 1, 0, Reason.STATIC, self.verify_tokens)

    def observe(self, feedback: Feedback) -> None:
        self.observed.append(feedback)


def profile_steps(
    context: ModelContext,
    limits: Limits,
    shapes: Mapping[int, DraftShape],
    policy: AdaptivePolicy,
    budget_s: float,
    clock: Callable[[], float],
    progress: ShowProgress | None = None,
) -> tuple[CostPoint, ...]:
    """Measure every choice that `policy` can make, before serving begins.

    Returns:
        A point per batch size and draft steps measured within the budget: the median of its steps.
    """
    if budget_s == 0:
        return ()
    now = shared_clock(context.ranks, clock)
    ends_s = now() + budget_s
    dictated = FixedSteps(min(shapes))
    scheduler = Scheduler(limits, Drafting(dictated), PrefixCache(limits.page_size, is_on=False))
    stopwatch = Stopwatch(context.target.device, clock, ranks=context.ranks)
    core = EngineCore(context, scheduler, shapes, frozenset(), stopwatch, facts={})

    def candidates_of(batch_size: int) -> tuple[int, ...]:
        return all_steps(policy.routing.reachable(policy.table, batch_size))

    points: list[CostPoint] = []
    stages = plan_stages(limits, candidates_of)
    with progress_bar(progress, "measuring step times", len(stages), "batch") as add:
        for stage in stages:
            if now() >= ends_s:
                log.info(
                    "measuring step times: the budget of %g s is used up; batch size %d and later "
                    "ones are learned while serving",
                    budget_s,
                    stage.batch_size,
                )
                break
            dictated.verify_tokens = policy.table.range_of(stage.batch_size).verify_tokens
            points += _measure_stage(core, dictated, stage, lambda: now() < ends_s)
            add(1)
    for line in _lines(points):
        log.info("%s", line)
    return tuple(points)


def _lines(points: Sequence[CostPoint]) -> Iterator[str]:
    """Return the measured costs as log lines, one per batch size and context."""
    rows: dict[tuple[int, int], list[CostPoint]] = {}
    for point in points:
        length = point.kv_tokens // point.batch_size
        rows.setdefault((point.batch_size, length >= LONG_PROMPT_TOKENS // 4), []).append(point)
    for (size, is_long), row in sorted(rows.items()):
        times = ", ".join(f"{one.seconds * 1000:.2f} at num_steps {one.num_steps}" for one in row)
        context = ", long context" if is_long else ""
        yield f"step time: {size} requests{context}: ms {times}"


@dataclass(frozen=True, slots=True)
class Stage:
    """Requests to decode together, and the draft steps to time them with."""

    batch_size: int
    prompt_tokens: int
    num_steps_choices: tuple[int, ...]


def plan_stages(
    limits: Limits, candidates_of: Callable[[int], tuple[int, ...]]
) -> tuple[Stage, ...]:
    """Choose what to measure, most informative first: smallest, largest, then between.

    Args:
        candidates_of: draft steps that are reachable at a batch size, ascending.
    """
    steps = (WARM_UP_STEPS + TIMED_STEPS) * limits.max_draft_tokens
    room = (limits.pages - 1) * limits.page_size
    stages = []
    for size in _spread(limits.max_running):
        num_steps_choices = candidates_of(size)
        tokens = PROMPT_TOKENS + len(num_steps_choices) * steps + limits.reserve_tokens
        if size * tokens <= room and tokens <= limits.longest_sequence:
            stages.append(Stage(size, PROMPT_TOKENS, num_steps_choices))
    if not stages:
        return ()
    ends = tuple(sorted({stages[0].num_steps_choices[0], stages[0].num_steps_choices[-1]}))
    left = min(limits.longest_sequence, room) - 2 * steps - limits.reserve_tokens
    long = min(LONG_PROMPT_TOKENS, left)
    if long >= 4 * PROMPT_TOKENS:
        stages.insert(2, Stage(1, long, ends))
    return tuple(stages)


def _spread(largest: int) -> tuple[int, ...]:
    """Batch sizes 1, the largest, and powers of two between, the middle ones first."""
    powers = [2**n for n in range(1, largest.bit_length()) if 2**n < largest]
    middle = sorted(powers, key=lambda size: abs(powers.index(size) - len(powers) / 2))
    return tuple(dict.fromkeys((1, largest, *middle)))


def _measure_stage(
    core: EngineCore, policy: FixedSteps, stage: Stage, has_time: Callable[[], bool]
) -> Iterator[CostPoint]:
    # Requests that wait for the others decode as little as possible.
    policy.num_steps = stage.num_steps_choices[0]
    with decoding(core, stage.batch_size, stage.prompt_tokens):
        for num_steps in stage.num_steps_choices:
            if not has_time():
                break
            policy.num_steps = num_steps
            point = _time_steps(core, policy, stage.batch_size)
            if point is not None:
                yield point


@contextmanager
def decoding(core: EngineCore, batch_size: int, prompt_tokens: int) -> Iterator[None]:
    """Decode synthetic requests together within the body; they are aborted after it.

    Args:
        core: an engine without other requests.
        prompt_tokens: of each request; the outputs may fill the rest of the context.
    """
    rng = random.Random(batch_size)
    vocab = core.context.target.config.vocab_size
    names = [f"made-up-{number}" for number in range(batch_size)]
    most = core.context_length - prompt_tokens
    try:
        for name in names:
            prompt = tuple(rng.randrange(vocab) for _ in range(prompt_tokens))
            core.submit(Request(name, prompt, SamplingParams(0, most, 0.0, ignore_eos=True)))
        while core.scheduler.waiting or any(s.is_prefilling for s in core.scheduler.running):
            core.step()
        yield
    finally:
        for name in names:
            core.abort(name)
        while core.has_work():
            core.step()


def _time_steps(core: EngineCore, policy: FixedSteps, batch_size: int) -> CostPoint | None:
    policy.observed.clear()
    steps: list[Feedback] = []
    for _ in range(2 * (WARM_UP_STEPS + TIMED_STEPS)):
        core.step()
        steps = [one for one in policy.observed if one.decision.num_steps == policy.num_steps]
        if len(steps) >= WARM_UP_STEPS + TIMED_STEPS:
            break
    timed = [one for one in steps[WARM_UP_STEPS:] if one.batch_size == batch_size]
    if not timed:
        return None
    shape = core.shapes[policy.num_steps].verifying(policy.verify_tokens)
    return CostPoint(
        batch_size=batch_size,
        num_steps=policy.num_steps,
        kv_tokens=timed[len(timed) // 2].kv_tokens,
        seconds=statistics.median(one.seconds for one in timed),
        verify_tokens=shape.verify_tokens or None,
    )
