"""Grammars in the engine core: equal with and without drafts, valid, ended, and failing alone."""

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from checks.lossless.poison import build_poisoned
from checks.lossless.scripted import ScriptedDrafter
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import FinishReason, Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.grammar import (
    Grammar,
    GrammarCompiler,
    GrammarKind,
    GrammarSource,
    Matcher,
    TokenBytes,
)
from specdecode_engine.sampling.grammar_masks import (
    MASK_SECONDS,
    DraftOnHost,
    GrammarRows,
)

EOS = 5
VOCAB = 97
SPECIAL = {0: b"<pad>", 1: b"<s>", EOS: b"</s>"}
PIECES = [bytes([code]) for code in range(32, 127) if chr(code) not in "`~^%$#@!;<>?|"]
LONGER = [b'{"', b'":', b'",', b"tr", b"ue", b"ab", b"abc", b"10", b"\n", b'"}', b"  "]
PROMPTS = [tuple((7 * n + 3 * place) % 90 + 6 for place in range(3 + 6 * n)) for n in range(4)]

PERSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0, "maximum": 999},
        "ok": {"type": "boolean"},
        "tags": {"type": "array", "items": {"enum": ["abc", "x y"]}, "maxItems": 2},
    },
    "required": ["id", "ok", "tags"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
SOURCES = {
    "json": GrammarSource(GrammarKind.JSON_SCHEMA, json.dumps(PERSON)),
    "regex": GrammarSource(GrammarKind.REGEX, r"[a-z]{2,8}(-[0-9]{2}){1,3}\."),
    "ebnf": GrammarSource(
        GrammarKind.EBNF, 'root ::= term ("+" term)? "="\nterm ::= [0-9] | "(" root ")"'
    ),
}
HOSTILE = GrammarSource(GrammarKind.REGEX, "((a{0,100}){0,100}){0,100}")


def spell() -> list[bytes]:
    free = [token for token in range(VOCAB) if token not in SPECIAL]
    spellings = [b""] * VOCAB
    for token, piece in zip(free, [*PIECES, *LONGER], strict=False):
        spellings[token] = piece
    return [SPECIAL.get(token, piece) for token, piece in enumerate(spellings)]


SPELLINGS = spell()


@pytest.fixture(scope="module")
def compile_source() -> Callable[[GrammarSource], Grammar]:
    return GrammarCompiler(TokenBytes(SPELLINGS, frozenset(SPECIAL), frozenset({EOS}))).compile


@dataclass(slots=True)
class Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    grammar_fault: str | None = None

    @property
    def text(self) -> str:
        return b"".join(SPELLINGS[token] for token in self.tokens if token not in SPECIAL).decode()


def make_core(
    target: Path, *, pool_tokens: int | None = None, overlap: bool = True, **speculation: object
) -> EngineCore:
    document = {
        "model": {"path": str(target), "dtype": "float32"},
        "speculation": speculation,
        "memory": {"page_size": 4},
        "scheduling": {"max_running_requests": 4, "overlap": overlap},
        "device": "cpu",
    }
    boot = EngineBoot.model_validate(document)
    return build_poisoned(boot, pool_tokens)


def run(core: EngineCore, requests: Sequence[Request]) -> list[Answer]:
    answers = {request.request_id: Answer() for request in requests}
    for request in requests:
        core.submit(request)
    while core.has_work():
        for output in core.step():
            answer = answers[output.request_id]
            answer.tokens += output.token_ids
            answer.logprobs += [record.logprob for record in output.logprobs or ()]
            answer.finish_reason = output.finish_reason
            answer.grammar_fault = output.grammar_fault
            if (suspended := output.suspended) is not None and suspended.grammar is not None:
                core.resume(replace(suspended, grammar=suspended.grammar.compile_again()))
        core.scheduler.check()
    return list(answers.values())


def make_requests(grammar: Grammar | None, most: int = 60, **sampling: Any) -> list[Request]:
    return [
        Request(
            str(number),
            prompt,
            SamplingParams(
                **{
                    "seed": number,
                    "max_tokens": most,
                    "temperature": 0.0,
                    "logprobs": 0,
                    **sampling,
                }
            ),
            grammar,
        )
        for number, prompt in enumerate(PROMPTS)
    ]


def is_valid(name: str, text: str) -> bool:
    if name == "json":
        content = json.loads(text)
        fits = list(content) == ["id", "ok", "tags"] and type(content["ok"]) is bool
        return fits and 0 <= content["id"] <= 999 and set(content["tags"]) <= {"abc", "x y"}
    if name == "regex":
        return re.fullmatch(SOURCES["regex"].text, text) is not None
    return text.endswith("=") and text.count("(") == text.count(")")


DRAFTS = [("STANDALONE", "draft", 4), ("EAGLE3", "eagle3", 1)]
SAMPLING: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.3, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
    {"presence_penalty": 0.7, "logit_bias": {EOS: 100.0, 40: 5.0}, "ignore_eos": True},
]


@pytest.fixture(scope="module")
def plain_core(checkpoints) -> EngineCore:
    return make_core(checkpoints.target, overlap=False)


@pytest.fixture(scope="module")
def plain_answers(plain_core: EngineCore, compile_source) -> Callable[[str], list[list[Answer]]]:
    """What plain decoding answers under a grammar, each request alone: a list for each sampling."""

    @cache
    def answers_of(name: str) -> list[list[Answer]]:
        grammar = compile_source(SOURCES[name])
        requests = (make_requests(grammar, **sampling)[1:3] for sampling in SAMPLING)
        return [[run(plain_core, [each])[0] for each in both] for both in requests]

    return answers_of


@pytest.mark.parametrize("name", list(SOURCES))
@pytest.mark.parametrize(("algorithm", "draft", "topk"), DRAFTS)
def test_r12_constrained_answers_are_the_same_with_a_draft(
    checkpoints, compile_source, plain_answers, name: str, algorithm: str, draft: str, topk: int
) -> None:
    grammar = compile_source(SOURCES[name])
    core = make_core(
        checkpoints.target,
        algorithm=algorithm,
        draft_path=str(getattr(checkpoints, draft)),
        topk=topk,
        num_steps=4,
    )
    ended = 0
    for sampling, expected in zip(SAMPLING, plain_answers(name), strict=True):
        requests = make_requests(grammar, **sampling)[1:3]
        for answer, right in zip(run(core, requests), expected, strict=True):
            assert (answer.tokens, answer.finish_reason) == (right.tokens, right.finish_reason)
            assert answer.logprobs == pytest.approx(right.logprobs, abs=1e-9)
            if answer.finish_reason is FinishReason.STOP:
                ended += 1
                assert answer.tokens[-1] == EOS
                assert is_valid(name, answer.text)
    assert ended >= 4


@pytest.mark.parametrize("topk", [1, 4])
def test_answers_are_the_same_when_masks_take_too_long_for_a_whole_draft(
    checkpoints, compile_source, plain_answers, monkeypatch: pytest.MonkeyPatch, topk: int
) -> None:
    core = make_core(
        checkpoints.target,
        algorithm="STANDALONE",
        draft_path=str(checkpoints.draft),
        topk=topk,
        num_steps=4,
    )
    rng, now_s = random.Random(7), [0.0]
    limited: list[int | None] = []
    grammars = core.context.sampler.grammars

    def clock() -> float:
        now_s[0] += rng.choice((0.0, 0.0, MASK_SECONDS))
        return now_s[0]

    def limit(self: DraftOnHost, accepted: Tensor, batch: GrammarRows) -> Tensor:
        limited.extend(self.depths)
        return whole(self, accepted, batch)

    whole = DraftOnHost.limit
    monkeypatch.setattr(DraftOnHost, "limit", limit)
    grammars.clock = clock
    grammar = compile_source(SOURCES["json"])
    for sampling, expected in zip(SAMPLING, plain_answers("json"), strict=True):
        answers = run(core, make_requests(grammar, **sampling)[1:3])
        assert [a.tokens for a in answers] == [right.tokens for right in expected]
    assert {None, 0} <= set(limited)


@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_batch_of_all_kinds_that_is_retracted_goes_on_as_if_nothing_was(
    checkpoints, compile_source, plain_core, topk: int, overlap: bool, monkeypatch
) -> None:
    followed: list[int] = []
    replay = Grammar._replay

    def count(self: Grammar, output: Sequence[int], *options: Any, with_masks: bool) -> Matcher:
        followed.append(len(output))
        return replay(self, output, *options, with_masks=with_masks)

    monkeypatch.setattr(Grammar, "_replay", count)
    grammars = [None, *(compile_source(source) for source in SOURCES.values())]
    requests = [
        replace(request, grammar=grammar)
        for request, grammar in zip(make_requests(None, 40, temperature=0.7), grammars, strict=True)
    ]
    expected = [run(plain_core, [request])[0] for request in requests]
    core = make_core(
        checkpoints.target,
        pool_tokens=66,
        overlap=overlap,
        algorithm="STANDALONE",
        draft_path=str(checkpoints.draft),
        topk=topk,
        num_steps=3,
    )
    answers = run(core, requests)
    assert [a.tokens for a in answers] == [e.tokens for e in expected]
    assert core.scheduler.preempted_total > 0
    assert not any(followed), "a grammar keeps its place while its request waits"


def scripted(core: EngineCore, texts: list[list[int]], right: float) -> EngineCore:
    drafter = ScriptedDrafter(core.context.table, texts, VOCAB, right)
    core.context = replace(core.context, drafter=drafter)
    return core


@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("right", [1.0, 0.5, 0.0])
def test_an_answer_ends_inside_an_accepted_run_and_illegal_drafts_change_nothing(
    checkpoints, compile_source, plain_core, topk: int, right: float
) -> None:
    """Right drafts continue after EOS; wrong ones propose any token of the vocabulary."""
    requests = make_requests(compile_source(SOURCES["json"]), temperature=0.9)
    expected = [run(plain_core, [request])[0] for request in requests]
    assert {answer.finish_reason for answer in expected} == {FinishReason.STOP}
    core = make_core(
        checkpoints.target,
        algorithm="STANDALONE",
        draft_path=str(checkpoints.draft),
        topk=topk,
        num_steps=7,
    )
    texts = [
        [*request.prompt_ids, *answer.tokens, 7, 8, 9, 7, 8, 9, 7]
        for request, answer in zip(requests, expected, strict=True)
    ]
    answers = run(scripted(core, texts, right), requests)
    assert [a.tokens for a in answers] == [e.tokens for e in expected]
    assert [a.finish_reason for a in answers] == [e.finish_reason for e in expected]
    if right == 1.0:
        assert core.counters.decode.emitted_tokens > 6 * core.counters.decode.request_steps
    if right == 0.0:
        assert core.counters.decode.accepted_tokens == 0


def test_a_cap_cuts_a_constrained_answer_at_every_place(checkpoints, compile_source) -> None:
    grammar = compile_source(SOURCES["regex"])
    core = make_core(
        checkpoints.target,
        algorithm="STANDALONE",
        draft_path=str(checkpoints.target),
        num_steps=5,
    )
    request = make_requests(grammar)[1]
    full = run(core, [request])[0]
    assert full.finish_reason is FinishReason.STOP
    for cap in range(1, len(full.tokens) + 2):
        capped = replace(request, sampling=replace(request.sampling, max_tokens=cap))
        answer = run(core, [capped])[0]
        assert answer.tokens == full.tokens[:cap]
        has_ended = cap >= len(full.tokens)
        assert answer.finish_reason is (FinishReason.STOP if has_ended else FinishReason.LENGTH)


@pytest.mark.parametrize("num_steps", [0, 4])
def test_eos_ends_a_complete_answer_also_where_it_is_ignored(
    checkpoints, compile_source, num_steps: int
) -> None:
    grammar = compile_source(GrammarSource(GrammarKind.REGEX, "a{2,4}"))
    core = make_core(
        checkpoints.target,
        algorithm="STANDALONE",
        draft_path=str(checkpoints.target),
        num_steps=num_steps,
    )
    early, late = (
        run(core, make_requests(grammar, logit_bias={EOS: 100.0}, ignore_eos=ignore)[:1])[0]
        for ignore in (False, True)
    )
    assert (early.text, early.finish_reason) == ("aa", FinishReason.STOP)
    assert (late.text, late.finish_reason) == ("aaaa", FinishReason.STOP)


@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_grammar_that_gives_up_fails_its_own_request_alone(
    checkpoints, compile_source, plain_core, topk: int, overlap: bool
) -> None:
    core = make_core(
        checkpoints.target,
        overlap=overlap,
        algorithm="STANDALONE",
        draft_path=str(checkpoints.draft),
        topk=topk,
        num_steps=4,
    )
    others = make_requests(compile_source(SOURCES["json"]))[:2] + make_requests(None)[2:3]
    expected = [run(plain_core, [request])[0] for request in others]
    failing = make_requests(compile_source(HOSTILE), 200, ignore_eos=True)[3]
    *answers, failed = run(core, [*others, failing])
    assert [a.tokens for a in answers] == [e.tokens for e in expected]
    assert failed.finish_reason is FinishReason.ERROR
    assert failed.grammar_fault is not None
    assert "too many expressions" in failed.grammar_fault
    assert set(failed.text) <= {"a"}
    assert core.scheduler.available_pages == core.scheduler.pages.total
    assert run(core, others[:1])[0].tokens == expected[0].tokens


def test_a_batch_without_grammars_waits_for_nothing_and_masks_nothing(
    checkpoints, compile_source, monkeypatch
) -> None:
    core = make_core(
        checkpoints.target,
        algorithm="STANDALONE",
        draft_path=str(checkpoints.draft),
        num_steps=3,
    )
    grammars = core.context.sampler.grammars
    waits: list[bool] = []
    ask = grammars.needs_host_tokens

    def record(req_indices) -> bool:
        waits.append(ask(req_indices))
        return waits[-1]

    monkeypatch.setattr(grammars, "needs_host_tokens", record)
    monkeypatch.setattr(grammars, "_walk", lambda *args: pytest.fail("a mask was made"))
    run(core, make_requests(None))
    assert waits
    assert not any(waits)
    monkeypatch.undo()
    assert grammars.stage([1, 2, 3]) is None
    monkeypatch.setattr(grammars, "needs_host_tokens", record)
    run(core, make_requests(compile_source(SOURCES["regex"]))[:1])
    assert any(waits)


def test_a_grammar_needs_no_draft(checkpoints, compile_source) -> None:
    core = make_core(checkpoints.target)
    answers = run(core, make_requests(compile_source(SOURCES["ebnf"]), temperature=1.0))
    assert all(
        a.finish_reason is not FinishReason.STOP or is_valid("ebnf", a.text) for a in answers
    )
