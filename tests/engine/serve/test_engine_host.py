"""Commands to an engine: what takes long happens in other threads; all can be pickled."""

import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from specdecode_api.boot import EngineBoot
from specdecode_engine.adaptive.policy import DraftRefused, TableRefused
from specdecode_engine.batch.request import (
    Output,
    QueueFull,
    Request,
    RequestRefused,
    SamplingParams,
    TokenLogprobs,
)
from specdecode_engine.grammar import (
    Grammar,
    GrammarCompiler,
    GrammarKind,
    GrammarSource,
    TokenBytes,
    TranslatedGrammar,
)
from specdecode_engine.serve.engine.compile_threads import COMPILE_THREADS, Yielding
from specdecode_engine.serve.engine.core import (
    EngineFailed,
    GrammarBusy,
    LoadedEngine,
    ProcessFailed,
)
from specdecode_engine.serve.engine.engine_host import EngineHost
from specdecode_engine.serve.engine.messages import (
    Abort,
    Ended,
    EngineCall,
    Event,
    ExchangeDraft,
    PrepareGrammars,
    Reply,
    Started,
    StepOutputs,
    Submit,
    TakeSnapshot,
)
from specdecode_engine.stats.snapshot import CoreSnapshot
from tests.engine.serve.conftest import wait_until
from tests.engine.serve.echo_core import EchoCore, load_echo

TOKENS = TokenBytes(
    [*(bytes([byte]) for byte in range(256)), b"</s>"], frozenset({256}), frozenset({256})
)
SOURCE = GrammarSource(GrammarKind.REGEX, "a+")
WORD = TranslatedGrammar(SOURCE, GrammarCompiler(TOKENS).translate_and_compile(SOURCE)[0])
BROKEN = TranslatedGrammar(SOURCE, '{"grammars": [{"lark_grammar": "start: /a"}]}')


class Clock:
    """Stands still until it is set."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Hosted:
    """An engine host with an echo core, and the events that it emitted."""

    def __init__(self) -> None:
        self.core, self.clock = EchoCore(), Clock()
        self.events: list[Event] = []
        loaded = LoadedEngine(self.core, Path("model"), {"kinds": ("a", "b"), "path": Path("x")})
        self.host = EngineHost(lambda _: loaded, self.events.append, self.clock)
        self.host.start()
        self.call(1, PrepareGrammars(TOKENS))

    def send(self, number: int, command: object) -> None:
        self.host.send(EngineCall(number, command))  # type: ignore[arg-type]

    def call(self, number: int, command: object) -> Reply:
        self.send(number, command)
        return self.reply(number)

    def reply(self, number: int) -> Reply:
        wait_until(lambda: bool(self.replies(number)))
        return self.replies(number)[0]

    def replies(self, number: int) -> list[Reply]:
        return [one for one in self.events if isinstance(one, Reply) and one.number == number]


@pytest.fixture
def hosted() -> Iterator[Hosted]:
    running = Hosted()
    yield running
    running.host.stop()
    assert running.host.join(10)


@pytest.fixture
def occupied(hosted: Hosted) -> Iterator[Callable[[], None]]:
    """Both compile threads are busy until the function is called."""
    release = threading.Event()
    for _ in range(COMPILE_THREADS):
        hosted.host._compile_threads.submit(False, release.wait)
    yield release.set
    release.set()


def request(name: str, grammar: TranslatedGrammar | None = None) -> Request:
    params = SamplingParams(seed=0, max_tokens=3, temperature=0.0, ignore_eos=True)
    return Request(name, (1, 2, 3), params, translated_grammar=grammar)


def test_the_engine_gets_compiled_grammars(hosted: Hosted) -> None:
    submitted: list[Request] = []
    hosted.core.submit = submitted.append  # type: ignore[method-assign, assignment]
    reply = hosted.call(2, Submit((request("a", WORD), request("b"), request("c", WORD))))
    assert reply.error is None
    assert [one.grammar is not None for one in submitted] == [True, False, True]
    assert submitted[0].grammar is not submitted[2].grammar, "they would share limits"


def test_a_continued_answer_is_followed_before_the_engine_gets_it(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[Request] = []
    hosted.core.submit = submitted.append  # type: ignore[method-assign, assignment]
    begun = replace(request("a", WORD), output_ids=(97, 97))
    assert hosted.call(2, Submit((begun,))).error is None
    monkeypatch.delattr(Grammar, "_replay")
    grammar = submitted[0].grammar
    assert grammar is not None
    assert grammar.follow((97, 97), ends_late=True).tokens == [97, 97]


def test_new_answers_wait_for_none_that_is_followed_long(hosted: Hosted) -> None:
    release = threading.Event()
    for _ in range(COMPILE_THREADS):
        hosted.host._compile_threads.submit(True, release.wait)
    continued = replace(request("a", WORD), output_ids=(97,))
    hosted.send(2, Submit((continued,)))
    assert hosted.call(3, Submit((request("b", WORD),))).error is None
    assert not hosted.replies(2)
    hosted.clock.now_s = 60.0
    release.set()
    assert hosted.reply(2).error is None, "the client has a part of it"


def test_work_of_threads_leaves_two_thirds_of_the_time() -> None:
    now_s, rests = [0.0], list[float]()

    def rest(seconds: float) -> None:
        rests.append(seconds)
        now_s[0] += seconds

    yielding = Yielding(lambda: now_s[0], rest)
    for _ in range(1000):
        now_s[0] += 0.00026
        yielding()
    assert sum(rests) == pytest.approx(0.5)
    assert max(rests) == 0.001


def test_a_grammar_that_the_engine_refuses_ends_its_request_alone(hosted: Hosted) -> None:
    error = hosted.call(2, Submit((request("a", BROKEN),))).error
    assert isinstance(error, RequestRefused)
    assert "the grammar is refused" in str(error)
    assert hosted.call(3, Submit((request("b", WORD),))).error is None


def test_a_command_that_fails_in_a_thread_is_answered(
    hosted: Hosted, caplog: pytest.LogCaptureFixture
) -> None:
    reply = hosted.call(2, PrepareGrammars(TokenBytes([b"a"], frozenset(), frozenset({5}))))
    assert isinstance(reply.error, EngineFailed)
    assert str(reply.error) == "ValueError in the engine"
    assert "EOS token ID 5 is out of range" in caplog.text


def test_requests_with_grammars_delay_no_others_and_are_refused_after_a_while(
    hosted: Hosted, occupied: Callable[[], None]
) -> None:
    hosted.send(2, Submit((request("a", WORD),)))
    assert hosted.call(3, Submit((request("b"),))).error is None
    assert not hosted.replies(2)
    hosted.clock.now_s = 60.0
    occupied()
    assert isinstance(hosted.reply(2).error, GrammarBusy)


def test_a_request_that_is_aborted_while_its_grammar_waits_never_runs(
    hosted: Hosted, occupied: Callable[[], None]
) -> None:
    hosted.send(2, Submit((request("a", WORD),)))
    hosted.send(0, Abort(("a",)))
    hosted.send(3, Submit((request("b", WORD),)))
    occupied()
    assert hosted.reply(3).error is None
    wait_until(lambda: any(isinstance(one, StepOutputs) for one in hosted.events))
    outputs = [one.outputs for one in hosted.events if isinstance(one, StepOutputs)]
    assert {output.request_id for step in outputs for output in step} == {"b"}
    assert not hosted.replies(2)


def test_other_choices_run_when_one_is_aborted_while_their_grammar_waits(
    hosted: Hosted, occupied: Callable[[], None]
) -> None:
    hosted.send(2, Submit((request("a", WORD), request("b", WORD))))
    hosted.send(0, Abort(("a",)))
    occupied()
    assert hosted.reply(2).error is None
    wait_until(lambda: any(isinstance(one, StepOutputs) for one in hosted.events))
    outputs = [one.outputs for one in hosted.events if isinstance(one, StepOutputs)]
    assert {output.request_id for step in outputs for output in step} == {"b"}


def test_an_engine_without_a_draft_refuses_an_exchange(hosted: Hosted) -> None:
    error = hosted.call(2, ExchangeDraft(Path("draft"))).error
    assert isinstance(error, DraftRefused)
    assert error.needs_restart


def test_facts_and_figures_are_reported_at_the_start_and_the_end(hosted: Hosted) -> None:
    started = next(one for one in hosted.events if isinstance(one, Started))
    assert started.facts == {"kinds": ["a", "b"], "path": "x"}
    assert isinstance(hosted.call(2, TakeSnapshot()).value, CoreSnapshot)
    hosted.host.stop()
    wait_until(lambda: isinstance(hosted.events[-1], Ended))


@pytest.mark.parametrize(
    "message",
    [
        EngineCall(7, Submit((request("a", WORD),))),
        EngineCall(8, PrepareGrammars(TOKENS)),
        Reply(7, EchoCore().snapshot(), None),
        StepOutputs([Output("a", (1, 2), (TokenLogprobs(1, -0.5, ((1, -0.5),)),), drafted=3)]),
        partial(load_echo, step_seconds=1.0),
        EngineBoot.model_validate({"model": {"path": "model"}}),
    ],
    ids=["submit", "prepare", "reply", "outputs", "load", "boot"],
)
def test_messages_arrive_at_another_process_as_they_were_sent(message: object) -> None:
    arrived = pickle.loads(pickle.dumps(message))
    if isinstance(message, partial):
        assert (arrived.func, arrived.keywords) == (message.func, message.keywords)
    else:
        assert arrived == message


def test_experts_and_refusals_arrive_as_they_were_sent() -> None:
    ids = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)
    output = pickle.loads(pickle.dumps(Output("a", (1,), routed_experts=ids)))
    assert (output.routed_experts == ids).all()
    assert output.routed_experts.dtype == ids.dtype
    for error in (
        QueueFull("full"),
        TableRefused("no"),
        DraftRefused("no", needs_restart=True),
        ProcessFailed("it died"),
    ):
        arrived = pickle.loads(pickle.dumps(error))
        assert (type(arrived), str(arrived)) == (type(error), str(error))
        assert vars(arrived) == vars(error)
