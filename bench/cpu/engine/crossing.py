"""Load that goes back and forth between one request and many, and both sides of the boundary alone.

One long answer runs all the time while bursts of others come and go, so that each burst takes the
batch over every boundary of the table and back. What it is compared with are the fixed depths that
suit one side each: no drafting for the crowd, a deep draft for the single request.
"""

import random
import tempfile
import time
from pathlib import Path

from bench.cpu.engine.adaptive import ADAPTIVE, Extent, build_adaptable
from bench.cpu.engine.interleaved import Learner, interleave
from bench.cpu.peers.epsilon_pair import STRONG, write_pair
from specdecode_engine.batch.request import FinishReason, Request, SamplingParams
from specdecode_engine.engine import EngineCore

SIDES = (0, 3)
MOST = 64
BURSTS = 2
BURST_TOKENS = 16
ALONE_TOKENS = 64


def measure_crossing(extent: Extent) -> dict[str, float]:
    """Return the rates, and the adaptive one over the better side."""
    with tempfile.TemporaryDirectory() as folder:
        target, draft = write_pair(Path(folder), extent.size, STRONG)
        configs = (*SIDES, ADAPTIVE)
        cores = {config: build_adaptable(target, draft, config, MOST) for config in configs}

    def run(core: EngineCore, seed: int) -> float:
        return _rate(core, extent.size.vocab, seed)

    learner = Learner(ADAPTIVE, extent.learning_steps)
    rates = interleave(cores, run, extent.repeats, learner, f"1 and {MOST} in turns")
    best = rates.best(SIDES)
    return {
        "better_side_steps": best,
        "to_better_side": rates.ratio(ADAPTIVE, best),
        **rates.medians(),
    }


def _rate(core: EngineCore, vocab: int, repeat: int) -> float:
    """Run the load; tokens per second of processor time.

    Raises:
        AssertionError: an answer is missing or was cut.
    """
    rng = random.Random(repeat)
    lengths = {"long": BURSTS * (ALONE_TOKENS + BURST_TOKENS)}
    _submit(core, "long", lengths["long"], rng, vocab)
    got: dict[str, int] = {"long": 0}
    started_s = time.process_time()
    for burst in range(BURSTS):
        goal = got["long"] + ALONE_TOKENS // 2
        while got["long"] < min(goal, lengths["long"]):
            _step(core, got)
        names = [f"{burst}-{number}" for number in range(MOST - 1)]
        for name in names:
            lengths[name] = BURST_TOKENS
            got[name] = 0
            _submit(core, name, BURST_TOKENS, rng, vocab)
        while any(got[name] < BURST_TOKENS for name in names):
            _step(core, got)
    while core.has_work():
        _step(core, got)
    seconds = time.process_time() - started_s
    assert got == lengths, "an answer was cut"
    return sum(got.values()) / seconds


def _submit(core: EngineCore, name: str, tokens: int, rng: random.Random, vocab: int) -> None:
    prompt = tuple(rng.randrange(vocab) for _ in range(8))
    core.submit(Request(name, prompt, SamplingParams(0, tokens, 0.0, ignore_eos=True)))


def _step(core: EngineCore, got: dict[str, int]) -> None:
    for output in core.step():
        got[output.request_id] += len(output.token_ids)
        assert output.finish_reason in (None, FinishReason.LENGTH), output
