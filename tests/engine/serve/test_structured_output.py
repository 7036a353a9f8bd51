"""Structured output over HTTP: every form of the request that clients use, and the responses."""

import json
import random
import re
from collections.abc import Callable
from typing import Annotated

import numpy as np
import pytest
from pydantic import BaseModel, Field

from specdecode_engine.grammar import GrammarCompiler, GrammarKind, GrammarSource, TokenBytes
from specdecode_engine.serve.text.detokenizer import Detokenizer
from specdecode_engine.serve.text.tokenizer import Vocabulary

MESSAGES = [
    {"role": "user", "content": "Tell me about the cat."}  # vocabulary: allow tell: a user's words
]


class Animal(BaseModel):
    name: str = Field(max_length=12)
    legs: int = Field(ge=0, le=8)
    tags: list[Annotated[str, Field(max_length=8)]] = Field(max_length=2)


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "legs": {"type": "integer", "minimum": 0, "maximum": 8},
        "tags": {"type": "array", "items": {"enum": ["big", "small"]}, "maxItems": 2},
    },
    "required": ["name", "legs", "tags"],
    "additionalProperties": False,
}
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True},
}
DIGITS = r"[0-9]{2}-[0-9]{3}"
LIST = 'root ::= item ("," item)?\nitem ::= [a-c] | "[" root "]"'


def ask(server, **fields: object):
    return server.client.chat.completions.create(
        model="echo", messages=MESSAGES, max_completion_tokens=120, **fields
    )


@pytest.mark.parametrize("temperature", [0, 1])
def test_an_answer_fits_its_schema_whole_and_in_a_stream(built_server, temperature: float) -> None:
    asked = {"response_format": FORMAT, "temperature": temperature, "seed": 4}
    choice = ask(built_server, **asked).choices[0]
    assert choice.finish_reason == "stop"
    animal = Animal.model_validate_json(choice.message.content)
    assert set(animal.tags) <= {"big", "small"}
    chunks = list(ask(built_server, stream=True, **asked))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == choice.message.content
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_the_client_parses_into_its_own_types(built_server) -> None:
    answer = built_server.connect(is_strict=False).chat.completions.parse(
        model="echo",
        messages=MESSAGES,
        max_completion_tokens=200,
        response_format=Animal,
        temperature=1,
        seed=2,
    )
    assert isinstance(answer.choices[0].message.parsed, Animal)


def test_several_answers_of_one_call_all_fit(built_server) -> None:
    choices = ask(built_server, response_format=FORMAT, n=3, temperature=1, seed=1).choices
    assert [choice.finish_reason for choice in choices] == ["stop"] * 3
    assert len({choice.message.content for choice in choices}) > 1
    for choice in choices:
        Animal.model_validate_json(choice.message.content)


REGEX_WORDS: list[dict[str, object]] = [
    {"response_format": {"type": "regex", "regex": DIGITS}},
    {"response_format": {"type": "regex", "pattern": DIGITS}},
    {"guided_regex": DIGITS},
    {"structured_outputs": {"regex": DIGITS}},
    {"regex": DIGITS},
]
CHOICE_WORDS: list[dict[str, object]] = [
    {"guided_choice": ["yes", "no"]},
    {"structured_outputs": {"choice": ["yes", "no"]}},
]
EBNF_WORDS: list[dict[str, object]] = [
    {"response_format": {"type": "ebnf", "ebnf": LIST}},
    {"response_format": {"type": "ebnf", "grammar": LIST}},
    {"guided_grammar": LIST},
    {"structured_outputs": {"grammar": LIST}},
    {"ebnf": LIST},
    {"guided_grammar": 'start: item ("," item)?\nitem: /[a-c]/ | "[" start "]"'},
]
OBJECT_WORDS: list[dict[str, object]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    {"guided_json": SCHEMA},
    {"guided_json": json.dumps(SCHEMA)},
    {"structured_outputs": {"json": SCHEMA}},
    {"json_schema": json.dumps(SCHEMA)},
]


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [(fields, DIGITS) for fields in REGEX_WORDS]
    + [(fields, "yes|no") for fields in CHOICE_WORDS]
    + [(fields, r"[\[\],abc]+") for fields in EBNF_WORDS]
    + [(fields, r"(?s)\{.*\}") for fields in OBJECT_WORDS],
)
def test_every_dialect_constrains_both_apis(
    built_server, fields: dict[str, object], pattern: str
) -> None:
    asked = {"max_tokens": 120, "temperature": 0.7, "seed": 3, **fields}
    chat = built_server.post("/v1/chat/completions", json={"messages": MESSAGES, **asked}).json()
    plain = built_server.post("/v1/completions", json={"prompt": "The", **asked}).json()
    for choice, text in (
        (chat["choices"][0], chat["choices"][0]["message"]["content"]),
        (plain["choices"][0], plain["choices"][0]["text"]),
    ):
        if choice["finish_reason"] == "stop":
            assert re.fullmatch(pattern, text), text
    if pattern != r"[\[\],abc]+":
        assert chat["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "words",
    [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}],
)
def test_json_mode_gives_an_object(built_server, words: dict[str, object]) -> None:
    body = {"messages": MESSAGES, "max_tokens": 200, "temperature": 1.0, "n": 6, "seed": 1, **words}
    choices = built_server.post("/v1/chat/completions", json=body).json()["choices"]
    texts = [c["message"]["content"] for c in choices if c["finish_reason"] == "stop"]
    assert texts
    assert all(isinstance(json.loads(text), dict) for text in texts)


@pytest.mark.parametrize(
    "words",
    [{"response_format": {"type": "text"}}, {"structured_outputs": None}, {"guided_json": None}],
)
def test_nothing_asked_is_nothing_done(built_server, words: dict[str, object]) -> None:
    body = {"prompt": "The", "max_tokens": 5, "temperature": 0}
    free = built_server.post("/v1/completions", json=body).json()["choices"][0]["text"]
    assert (
        built_server.post("/v1/completions", json={**body, **words}).json()["choices"][0]["text"]
        == free
    )


def schema_format(schema: object, **more: object) -> dict[str, object]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema, **more}}}


SCHEMA_FIELD = "response_format.json_schema.schema"
TAG_FIELD = "structured_outputs.structural_tag"
REFUSED: list[tuple[dict[str, object], str, str]] = [
    (schema_format({"type": "objct"}), SCHEMA_FIELD, r"at \$: Invalid type"),
    (schema_format({"properties": {"a": {"items": {"type": 1}}}}), SCHEMA_FIELD, r"\.a\.items: "),
    (schema_format({"uniqueItems": True}, strict=True), SCHEMA_FIELD, "uniqueItems"),
    (schema_format([1]), SCHEMA_FIELD, "an object"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "requires this"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
    ({"response_format": {"type": "regex", "regex": "a("}}, "response_format.regex", "unclosed"),
    ({"response_format": {"type": "regex"}}, "response_format.regex", "requires this field"),
    ({"guided_grammar": "root ::= foo"}, "guided_grammar", "foo"),
    ({"guided_choice": []}, "guided_choice", "at least 1"),
    ({"structured_outputs": {"structural_tag": "x"}}, TAG_FIELD, "not supported"),
    ({"regex": "a", "guided_regex": "b"}, "regex", "guided_regex and regex both"),
]


@pytest.mark.parametrize(("fields", "param", "message"), REFUSED, ids=range(len(REFUSED)))
def test_a_bad_grammar_is_refused_by_its_place(
    built_server, fields: dict[str, object], param: str, message: str
) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/completions", {"prompt": "The"}),
    ):
        answer = built_server.post(path, json={**body, **fields, "stream": True})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param)
        assert re.search(message, error["message"]), error["message"]


OPTIONAL = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(500)}}
EXPLODING = "((.{0,100}){0,100}){0,100}"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"guided_regex": EXPLODING}, "too many expressions"),
        ({"guided_json": OPTIONAL}, "max is 2000"),
    ],
)
def test_a_grammar_that_fails_when_it_is_followed_is_refused_before(
    built_server, fields: dict[str, object], message: str
) -> None:
    answer = built_server.post("/v1/completions", json={"prompt": "The", **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, next(iter(fields)))
    assert re.search(f"it fails after .* tokens .*{message}.*simplify it", error["message"])


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_a_grammar_that_fails_later_ends_its_own_choice_alone(built_server, path: str) -> None:
    """The way to the part that fails is one token of many, which the trial does not take."""
    (token,) = built_server.service.text.encode("Q", add_special_tokens=False)
    fields = {
        "guided_grammar": f'start: a | b\na: /[a-z ]*/\nb: "Q" c\nc: /{EXPLODING}/\n',
        "logit_bias": {str(token): 100},
        "max_tokens": 200,
        "temperature": 0,
        **({"messages": MESSAGES} if path.startswith("chat") else {"prompt": "The"}),
    }
    answer = built_server.post(f"/v1/{path}", json=fields)
    assert answer.status_code == 200
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "error"
    assert choice["error"]["code"] == "grammar_failed"
    assert "could not be followed: lexer error: too many expr" in choice["error"]["message"]
    text = choice["message"]["content"] if path.startswith("chat") else choice["text"]
    assert set(text) == {"Q"}
    streamed = built_server.post(f"/v1/{path}", json=fields | {"stream": True}).text
    *_, last, done = streamed.strip().split("\n\n")
    assert done == "data: [DONE]"
    (choice,) = json.loads(last.removeprefix("data: "))["choices"]
    assert (choice["finish_reason"], choice["error"]["code"]) == ("error", "grammar_failed")
    assert ask(built_server, response_format=FORMAT).choices[0].finish_reason == "stop"
    assert built_server.get("/ready").status_code == 200


def test_a_model_without_eos_refuses_grammars_and_serves_on(
    start_server, write_model, tmp_path
) -> None:
    folder = write_model(tmp_path / "without", chat_template=None)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    server = start_server(folder=folder, eos_token_ids=())
    assert server.get("/server_info").json()["stop_tokens"] == []
    answer = server.post("/v1/completions", json={"prompt": "a", "guided_regex": "a"})
    assert answer.status_code == 400
    assert "eos_token_id" in answer.json()["error"]["message"]
    assert server.post("/v1/completions", json={"prompt": "a"}).status_code == 200


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece", "metaspace"])
def test_the_grammar_reads_what_the_client_will(
    name: str, request, allowed_ids: Callable[..., list[int]]
) -> None:
    """The text of any way through a grammar, in every family of tokenizers, matches it."""
    tokenizer = request.getfixturevalue(name)
    vocabulary = Vocabulary(tokenizer)
    spellings = [vocabulary.spelling(token) for token in range(vocabulary.size)]
    eos = vocabulary.size
    tokens = TokenBytes([*spellings, b"</s>"], vocabulary.special_ids, frozenset({eos}))
    pattern = "(the| a|é|,){2,5}b?"
    grammar = GrammarCompiler(tokens).compile(GrammarSource(GrammarKind.REGEX, pattern))
    texts = set()
    for seed in range(30):
        path = allowed_ids(grammar, seed, eos)
        detokenizer = Detokenizer(vocabulary)
        texts.add("".join(detokenizer.push(token) for token in path) + detokenizer.flush())
    assert len(texts) > 5
    assert all(re.fullmatch(pattern, text) for text in texts)


@pytest.fixture
def allowed_ids() -> Callable[..., list[int]]:
    """Walk a grammar at random to its end."""

    def walk(grammar, seed: int, eos: int) -> list[int]:
        rng, matcher = random.Random(seed), grammar.follow(())
        path: list[int] = []
        while True:
            words = np.zeros(-(-(eos + 1) // 32), dtype=np.int32)
            matcher.fill(words)
            bits = np.unpackbits(words.view(np.uint8), bitorder="little")
            token = rng.choice(np.nonzero(bits)[0].tolist())
            if token == eos:
                return path
            matcher.advance(token)
            path.append(token)

    return walk
