"""The objective InterTokenLatency in a whole engine whose clock counts rows."""

import pytest

from specdecode_api.boot import EngineBoot
from specdecode_api.metrics import core as core_metrics
from specdecode_engine.adaptive.policy import Reason
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.schedule.prefill_pace import LONG_INTERVAL
from specdecode_engine.startup.build import build_core
from tests.engine.schedule.test_prefill_pace import CountedSeconds
from tests.engine.whole_engine import boot_of

FORWARD_S = 40  # of a forward, target or draft, and one second for each of its rows
PLAIN_S = FORWARD_S + 1


class Engine:
    """Serves with a draft that is the target, and notes the gaps of its decode steps."""

    def __init__(self, checkpoints, monkeypatch: pytest.MonkeyPatch, **scheduling: object) -> None:
        document = boot_of(checkpoints, "STANDALONE", 1, scheduling=scheduling)
        document["speculation"] |= {
            "draft_path": str(checkpoints.target), "policy": "goodput", "profile_seconds": 0,
        }  # fmt: skip
        self.core = build_core(EngineBoot.model_validate(document))
        self.clock = CountedSeconds(self.core, FORWARD_S, monkeypatch)
        self.gaps_s: list[float] = []
        self.reasons: set[Reason] = set()

    def limit(self, max_step_s: float) -> None:
        self.core.reload(self.core.scheduler.drafting.policy.table.within(max_step_s))

    def submit(self, name: str, prompt_tokens: int, max_tokens: int) -> None:
        vocab = self.core.context.target.config.vocab_size
        prompt = tuple(place * 13 % vocab for place in range(prompt_tokens))
        sampling = SamplingParams(seed=1, max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        self.core.submit(Request(name, prompt, sampling))

    def step(self) -> list[int]:
        """Return the tokens of a step, those of each request together."""
        before_s, decoding = self.clock.seconds, bool(self.core.scheduler._decoding())
        outputs = self.core.step()
        if decoding and self.core.counters.latest is not None:
            self.gaps_s.append(self.clock.seconds - before_s)
            self.reasons.add(self.core.counters.latest.reason)
        return [token for output in outputs for token in output.token_ids]

    def finish(self) -> list[int]:
        tokens: list[int] = []
        while self.core.has_work():
            tokens += self.step()
        return tokens


def unreachable_steps(core: EngineCore) -> float:
    return core.snapshot()[core_metrics.OBJECTIVE_UNREACHABLE_STEPS]


def test_gaps_keep_to_the_limit_while_the_draft_is_used(
    checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(checkpoints, monkeypatch, max_running_requests=2)
    engine.submit("free", 6, 60)
    wanted = engine.finish()
    assert max(engine.gaps_s) > 5 * PLAIN_S
    del engine.gaps_s[:]
    max_step_s = 4.0 * PLAIN_S  # two draft steps take 3 forwards and 5 rows
    engine.limit(max_step_s)
    for _ in range(4):
        engine.submit("limited", 6, 60)
        assert engine.finish() == wanted
    assert max(engine.gaps_s) <= max_step_s
    assert max(engine.gaps_s) > 2 * PLAIN_S, "the draft is used as far as the limit allows"
    assert unreachable_steps(engine.core) == 0


def test_steps_are_counted_that_cannot_be_short_enough(
    checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(checkpoints, monkeypatch, max_running_requests=2)
    engine.submit("free", 6, 60)
    engine.finish()
    assert unreachable_steps(engine.core) == 0
    engine.limit(0.9 * PLAIN_S)
    before = engine.core.counters.decode.steps
    engine.reasons.clear()
    engine.submit("limited", 6, 20)
    engine.finish()
    assert engine.reasons == {Reason.UNREACHABLE}
    assert unreachable_steps(engine.core) == engine.core.counters.decode.steps - before > 0
    assert engine.core.counters.latest is not None
    assert engine.core.counters.latest.num_steps == 0


def test_prompts_that_join_keep_to_the_limit(checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks share the forward of the decode rows: a row takes as long as a prompt token."""
    engine = Engine(checkpoints, monkeypatch, max_running_requests=2, chunked_prefill_tokens=200)
    engine.submit("first", 20, 30)
    engine.step()
    engine.submit("second", 120, 3)  # shows what chunks cost
    engine.finish()
    del engine.gaps_s[:]
    max_step_s = 2.5 * PLAIN_S
    engine.limit(max_step_s)
    engine.submit("running", 20, 60)
    engine.step()
    for number in range(3):
        engine.submit(f"joining {number}", 100, 2)
        for _ in range(10):
            engine.step()
    engine.finish()
    assert max(engine.gaps_s) <= 1.1 * max_step_s
    assert engine.core.counters.mixed_steps > 3


def test_prompts_of_which_nothing_fits_exceed_the_limit_seldom_and_do_not_wait_for_long(
    checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk takes a forward of the draft and one row: more than the limit leaves."""
    engine = Engine(checkpoints, monkeypatch, max_running_requests=3, chunked_prefill_tokens=60)
    engine.submit("first", 20, 30)
    engine.finish()
    max_step_s = 1.5 * PLAIN_S
    engine.limit(max_step_s)
    engine.submit("running", 20, 380)
    while not engine.core.scheduler._decoding():
        engine.step()
    del engine.gaps_s[:]
    engine.submit("at once", 50, 2)
    for _ in range(8):  # the first one measures a chunk of a token
        engine.step()
    assert len(engine.core.scheduler.running) == 1
    engine.submit("later", 100, 2)
    began = len(engine.gaps_s)
    while len(engine.core.scheduler.running) > 1:
        engine.step()
    assert len(engine.gaps_s) - began <= 2 * LONG_INTERVAL
    engine.finish()
    within = sum(gap_s <= max_step_s for gap_s in engine.gaps_s) / len(engine.gaps_s)
    assert within >= 0.985
    assert unreachable_steps(engine.core) == 0
