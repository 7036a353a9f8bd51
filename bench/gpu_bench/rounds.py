"""Runs rounds of an engine on made-up requests, at a depth that is dictated or by its policy."""

import random
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from specdecode_engine.depth.decision import DepthPolicy
from specdecode_engine.loop import EngineCore
from specdecode_engine.profiling import DictatedDepth
from specdecode_engine.request import Request, SamplingParams

WARM_UP_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that decode together."""

    batch: int
    prompt_tokens: int
    rounds: int


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """What rounds took, and what came of them."""

    device_s: float  # median, by events on the device
    wall_s: float  # mean, the host's share included
    kv_tokens: float  # of the whole batch, median
    tokens: int  # emitted in all timed rounds
    rounds: int

    @property
    def tokens_per_s(self) -> float:
        """Rate of the batch."""
        return self.tokens / (self.wall_s * self.rounds)


@contextmanager
def decoding(core: EngineCore, load: Load, policy: DepthPolicy) -> Iterator[None]:
    """Let the load decode under a policy; ends it, and puts the engine's own policy back."""
    own, core.scheduler.depth = core.scheduler.depth, policy
    names = [f"bench-{number}" for number in range(load.batch)]
    try:
        _submit(core, load, names)
        while core.scheduler.waiting or any(s.is_prefilling for s in core.scheduler.running):
            core.step()
        yield
    finally:
        for name in names:
            core.abort(name)
        while core.has_work():
            core.step()
        core.scheduler.depth = own


def time_rounds(
    core: EngineCore,
    load: Load,
    num_steps: int,
    clock: Callable[[], float],
    sync: Callable[[], None],
) -> RoundTimes:
    """Time rounds of one depth."""
    dictated = DictatedDepth(num_steps)
    with decoding(core, load, dictated):
        for _ in range(WARM_UP_ROUNDS):
            core.step()
        dictated.heard.clear()
        wall_s, tokens = _run(core, load.rounds, clock, sync)
        heard = [one for one in dictated.heard if one.batch_size == load.batch]
    if not heard:
        raise RuntimeError(f"no round of {load.batch} requests came back: {load}")
    return RoundTimes(
        device_s=statistics.median(one.seconds for one in heard),
        wall_s=wall_s / load.rounds,
        kv_tokens=statistics.median(one.kv_tokens for one in heard),
        tokens=tokens,
        rounds=load.rounds,
    )


def measure_rate(
    core: EngineCore,
    load: Load,
    policy: DepthPolicy,
    clock: Callable[[], float],
    sync: Callable[[], None],
) -> float:
    """Tokens per second under a policy, after as many rounds to learn in as are timed."""
    with decoding(core, load, policy):
        _run(core, load.rounds, clock, sync)
        wall_s, tokens = _run(core, load.rounds, clock, sync)
    return tokens / wall_s


def _submit(core: EngineCore, load: Load, names: list[str]) -> None:
    rng = random.Random(load.batch)
    vocab = core.parts.target.config.vocab_size
    most = core.context_length - load.prompt_tokens
    for name in names:
        prompt = tuple(rng.randrange(vocab) for _ in range(load.prompt_tokens))
        core.submit(Request(name, prompt, SamplingParams(0, most, 0.0, ignore_eos=True)))


def _run(
    core: EngineCore, rounds: int, clock: Callable[[], float], sync: Callable[[], None]
) -> tuple[float, int]:
    sync()
    started_s, tokens = clock(), 0
    for _ in range(rounds):
        tokens += sum(len(output.token_ids) for output in core.step())
    sync()
    return clock() - started_s, tokens
