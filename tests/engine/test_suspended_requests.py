"""Requests whose drafts exhaust the lexer: they wait for their grammar, and continue the answer."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specdecode_api.metrics import core as series
from specdecode_engine.batch.request import FinishReason, Output, Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.grammar import (
    GrammarCompiler,
    GrammarKind,
    GrammarSource,
    TokenBytes,
    TranslatedGrammar,
)
from specdecode_engine.serve.engine.compile_threads import (
    COMPILE_THREADS,
    CompileThreads,
    compile_grammar,
)
from specdecode_engine.serve.engine.core import LoadedEngine
from specdecode_engine.serve.engine.engine_host import EngineHost
from specdecode_engine.serve.engine.messages import (
    Abort,
    EngineCall,
    Event,
    PrepareGrammars,
    Reply,
    StepOutputs,
    Submit,
    TakeSnapshot,
)
from tests.engine.serve.conftest import wait_until
from tests.engine.test_structured_output import EOS, SPECIAL, SPELLINGS, make_core

WORDS = {"type": "string", "maxLength": 700, "pattern": r"^(?:\S+\s+){0,69}\S+$"}
SCHEMA = {"type": "object", "properties": {"words": WORDS}, "required": ["words"]}
SOURCE = GrammarSource(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
TOKENS = TokenBytes(SPELLINGS, frozenset(SPECIAL), frozenset({EOS}))
COMPILER = GrammarCompiler(TOKENS)
TRANSLATED = TranslatedGrammar(SOURCE, COMPILER.translate_and_compile(SOURCE)[0])
SEEDS = range(4)


def request(seed: int) -> Request:
    params = SamplingParams(seed, max_tokens=40, temperature=1.0, logprobs=0, prompt_logprobs=0)
    prompt = tuple(range(10 + seed, 30 + seed))
    return Request(str(seed), prompt, params, translated_grammar=TRANSLATED)


def compiled(seed: int) -> Request:
    return compile_grammar(request(seed), COMPILER)


class Answers:
    """What came back, by request."""

    def __init__(self) -> None:
        self.outputs: dict[str, list[Output]] = {}

    def take(self, output: Output) -> None:
        self.outputs.setdefault(output.request_id, []).append(output)

    def tokens(self, seed: int) -> list[int]:
        return [token for each in self.outputs[str(seed)] for token in each.token_ids]

    def scores(self, seed: int) -> list[float]:
        records = [one for each in self.outputs[str(seed)] for one in each.logprobs or ()]
        records += [one for each in self.outputs[str(seed)] for one in each.prompt_logprobs or ()]
        return [each.logprob for each in records]

    def reason(self, seed: int) -> FinishReason | None:
        return self.outputs[str(seed)][-1].finish_reason


@pytest.fixture(scope="module")
def plain(checkpoints) -> Answers:
    core, answers = make_core(checkpoints.target, overlap=False), Answers()
    for seed in SEEDS:
        core.submit(compiled(seed))
        while core.has_work():
            for output in core.step():
                answers.take(output)
    return answers


@pytest.fixture(params=[False, True], ids=["in turn", "overlap"])
def core(request: pytest.FixtureRequest, checkpoints) -> EngineCore:
    return make_core(
        checkpoints.target,
        overlap=request.param,
        algorithm="STANDALONE",
        draft_path=str(checkpoints.draft),
        topk=4,
        num_steps=6,
        num_draft_tokens=24,
    )


def run_until_suspended(core: EngineCore, answers: Answers) -> list[Request]:
    """Step until nothing can be computed; return what is suspended then."""
    suspended = []
    while core.has_work():
        for output in core.step():
            answers.take(output)
            suspended += [output.suspended] if output.suspended else []
        core.scheduler.check()
    return suspended


def test_a_request_continues_with_its_grammar_compiled_again(
    core: EngineCore, plain: Answers
) -> None:
    answers = Answers()
    for seed in SEEDS:
        core.submit(compiled(seed))
    suspended = run_until_suspended(core, answers)
    assert suspended
    assert core.snapshot()[series.WAITING_REQUESTS] == len(suspended)
    assert core.scheduler.available_pages == core.scheduler.pages.total
    for each in suspended:
        seed = int(each.request_id)
        assert (each.max_steps, each.output_ids) == (0, tuple(answers.tokens(seed)))
        core.resume(compile_grammar(each, COMPILER))
    assert run_until_suspended(core, answers) == []
    for seed in SEEDS:
        assert answers.tokens(seed) == plain.tokens(seed)
        assert answers.scores(seed) == pytest.approx(plain.scores(seed), abs=1e-9)
        assert answers.reason(seed) == plain.reason(seed)


def test_a_suspended_request_can_be_aborted(core: EngineCore, plain: Answers) -> None:
    answers = Answers()
    for seed in SEEDS:
        core.submit(compiled(seed))
    first, *others = run_until_suspended(core, answers)
    core.abort(first.request_id)
    core.resume(compile_grammar(first, COMPILER))
    assert not core.has_work()
    for each in others:
        core.resume(compile_grammar(each, COMPILER))
    run_until_suspended(core, answers)
    assert answers.tokens(int(first.request_id)) == list(first.output_ids)
    for seed in set(SEEDS) - {int(first.request_id)}:
        assert answers.tokens(seed) == plain.tokens(seed)
    core.submit(replace(compiled(0), request_id=first.request_id))  # the id is free


class Hosted:
    """An engine in a thread, with the threads that compile grammars, and what it emitted."""

    def __init__(self, core: EngineCore) -> None:
        self.core, self.events = core, list[Event]()
        self.host = EngineHost(lambda _: LoadedEngine(core, Path("model")), self.events.append)
        self.host.start()
        self.host.send(EngineCall(1, PrepareGrammars(TOKENS)))
        wait_until(lambda: any(isinstance(each, Reply) for each in self.events))

    def answers(self) -> Answers:
        answers = Answers()
        for event in tuple(self.events):
            for output in event.outputs if isinstance(event, StepOutputs) else ():
                answers.take(output)
        return answers

    def has_ended(self) -> bool:
        answers = self.answers()
        return all(str(seed) in answers.outputs and answers.reason(seed) for seed in SEEDS)


@pytest.fixture
def hosted(core: EngineCore) -> Iterator[Hosted]:
    running = Hosted(core)
    yield running
    running.host.stop()
    assert running.host.join(10)


def test_the_host_compiles_the_grammar_in_another_thread(
    hosted: Hosted, plain: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    continued: list[bool] = []
    submit = CompileThreads.submit

    def record(self: CompileThreads, is_continued: bool, *work: object) -> object:
        continued.append(is_continued)
        return submit(self, is_continued, *work)  # type: ignore[arg-type]

    monkeypatch.setattr(CompileThreads, "submit", record)
    hosted.host.send(EngineCall(2, Submit(tuple(map(request, SEEDS)))))
    wait_until(hosted.has_ended)
    answers = hosted.answers()
    assert True in continued
    assert not any(each.suspended for all_ in answers.outputs.values() for each in all_)
    for seed in SEEDS:
        assert answers.tokens(seed) == plain.tokens(seed)
        assert answers.reason(seed) == plain.reason(seed)


def test_a_host_drops_a_request_aborted_before_its_grammar_is_ready(hosted: Hosted) -> None:
    release = threading.Event()
    for _ in range(COMPILE_THREADS):
        hosted.host._compile_threads.submit(True, release.wait)
    hosted.host.send(EngineCall(2, Submit(tuple(map(request, SEEDS)))))
    wait_until(lambda: bool(hosted.core.scheduler.suspended) and not hosted.core.has_work())
    names = tuple(hosted.core.scheduler.suspended)
    hosted.host.send(EngineCall(0, Abort(names)))
    wait_until(lambda: not hosted.core.scheduler.suspended)
    release.set()
    both_free = threading.Barrier(COMPILE_THREADS + 1)
    for _ in range(COMPILE_THREADS):
        hosted.host._compile_threads.submit(True, both_free.wait)
    both_free.wait()
    hosted.host.send(EngineCall(3, TakeSnapshot()))
    wait_until(lambda: any(isinstance(e, Reply) and e.number == 3 for e in hosted.events))
    assert not hosted.core.has_work()
    assert not any(hosted.answers().reason(int(name)) for name in names)
