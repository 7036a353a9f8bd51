"""`return_routed_experts` over HTTP: arrays per choice, in one piece and streamed, and refusals."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from checks.lossless.families import EXPERTS, make_family
from specdecode_engine.batch.request import FinishReason, Output
from specdecode_engine.serve.openai import admission
from specdecode_engine.serve.openai import response_models as models
from specdecode_engine.serve.openai.json_text import to_json
from specdecode_engine.serve.openai.output_processor import OutputProcessor
from specdecode_engine.serve.openai.routed_experts import (
    PIECE_BYTES,
    Base64Text,
    routed_experts_object,
)
from tests.engine.serve.conftest import EXAMPLES, RunningServer, real_server

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
BASE = {"prompt": "the quick brown fox", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
MESSAGES = [{"role": "user", "content": "the fox"}]
ASKS = {"return_routed_experts": True}
DRAFT = {"algorithm": "STANDALONE", "draft_path": str(EXAMPLES / "draft"), "num_steps": 3}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A mixture with trees, started for the field."""
    folder = make_family(
        "qwen3_moe", EXAMPLES / "target", tmp_path_factory.mktemp("moe") / "target"
    )
    running = real_server(DRAFT | {"topk": 2}, folder=folder, return_routed_experts=True)
    yield running.wait_ready()
    running.close()


def ask(server: RunningServer, path: str = TEXT, **fields: object) -> dict[str, Any]:
    answer = server.post(path, json=BASE | ASKS | fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def as_json(field: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(to_json(field))
    return found


def decoded(field: dict[str, Any]) -> NDArray[np.integer[Any]]:
    data = base64.b64decode(field["data"], validate=True)
    ids = np.frombuffer(data, np.dtype(field["dtype"]).newbyteorder("<"))
    return ids.reshape(field["shape"])


def array(answer: dict[str, Any], choice: int = 0) -> NDArray[np.integer[Any]]:
    return decoded(answer["choices"][choice]["routed_experts"])


def test_each_choice_has_its_own(server: RunningServer) -> None:
    answer = ask(server, n=2, temperature=1, seed=4)
    usage = answer["usage"]
    first, second = array(answer), array(answer, 1)
    layers = json.loads((EXAMPLES / "target" / "config.json").read_text())["num_hidden_layers"]
    rows = usage["prompt_tokens"] + usage["completion_tokens"] // 2 - 1
    assert first.shape == second.shape == (rows, layers - 1, 2)
    assert max(first.max(), second.max()) < EXPERTS
    assert np.array_equal(first[: usage["prompt_tokens"]], second[: usage["prompt_tokens"]])
    assert not np.array_equal(first, second)
    models.CompletionResponse.model_validate(answer, strict=True)


def test_speculation_changes_none(server: RunningServer) -> None:
    drafted, plain = ask(server), ask(server, speculation={"max_steps": 0})
    assert drafted["usage"]["specdecode"]["num_accepted_tokens"] > 0
    assert plain["usage"]["specdecode"]["num_accepted_tokens"] == 0
    assert np.array_equal(array(drafted), array(plain))


def events(server: RunningServer, path: str, **fields: object) -> list[dict[str, Any]]:
    answer = server.post(path, json=BASE | ASKS | {"stream": True} | fields)
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_a_stream_has_them_in_the_last_event_of_the_choice(
    server: RunningServer, path: str
) -> None:
    fields = {} if path == TEXT else {"messages": MESSAGES}
    whole = ask(server, path, **fields)
    *others, last = events(server, path, **fields)
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["choices"][0]["routed_experts"] == whole["choices"][0]["routed_experts"]
    assert len(others) > 1
    assert all("routed_experts" not in event["choices"][0] for event in others)
    model = models.CompletionResponse if path == TEXT else models.ChatChunk
    model.model_validate(last, strict=True)


def test_a_stop_string_ends_them_with_the_text(server: RunningServer) -> None:
    free = ask(server)
    text = free["choices"][0]["text"]
    stopped = ask(server, stop=text[len(text) // 2 :][:3])
    usage = stopped["usage"]
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert usage["completion_tokens"] < free["usage"]["completion_tokens"]
    rows = usage["prompt_tokens"] + usage["completion_tokens"] - 1
    assert np.array_equal(array(stopped), array(free)[:rows])


def test_a_prompt_alone_has_all_of_its_tokens(server: RunningServer) -> None:
    answer = ask(server, max_tokens=0, echo=True)
    prompt = answer["usage"]["prompt_tokens"]
    assert np.array_equal(array(answer), array(ask(server))[:prompt])
    assert len(array(answer)) == prompt


def test_nothing_is_returned_unasked(server: RunningServer) -> None:
    answer = server.post(TEXT, json=BASE).json()
    assert "routed_experts" not in answer["choices"][0]
    assert "routed_experts" not in ask(server, return_routed_experts=False)["choices"][0]


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        (TEXT, BASE, "--enable-return-routed-experts"),
        (CHAT, {"messages": MESSAGES}, "--enable-return-routed-experts"),
        ("/v1/responses", {"input": "the fox"}, "/v1/chat/completions"),
        (TEXT, BASE | {"return_routed_experts": 1}, "boolean"),
    ],
)
def test_a_server_without_the_flag_refuses(
    echo_server: RunningServer, path: str, fields: dict[str, Any], words: str
) -> None:
    answer = echo_server.post(path, json=ASKS | fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "return_routed_experts")
    assert words in error["message"]


def test_large_arrays_are_encoded_in_pieces() -> None:
    ids = np.random.default_rng(1).integers(0, 512, (PIECE_BYTES // 100, 41, 3), np.int16)
    field = as_json(routed_experts_object([ids[:7], ids[7:]], len(ids) - 1))
    assert len(ids.tobytes()) > 2 * PIECE_BYTES
    assert field["data"] == base64.b64encode(ids[:-1].astype("<i2").tobytes()).decode()
    assert (field["shape"], field["dtype"]) == ([len(ids) - 1, 41, 3], "int16")


def test_a_choice_has_them_once_it_has_ended(server: RunningServer) -> None:
    vocabulary = server.service.text.vocabulary
    choice = OutputProcessor(0, vocabulary, prompt_ids=(5, 6))
    ids = np.arange(6, dtype=np.uint8).reshape(3, 1, 2)
    choice.push(Output("r", (7,), routed_experts=ids[:2]))
    assert (choice.has_routed_experts, choice.routed_experts_field) == (False, {})
    choice.push(Output("r", (8,), finish_reason=FinishReason.LENGTH, routed_experts=ids[2:]))
    assert choice.has_routed_experts
    assert np.array_equal(decoded(as_json(choice.routed_experts_field)["routed_experts"]), ids)


def test_the_next_engine_has_the_rows_of_what_another_generated(server: RunningServer) -> None:
    choice = OutputProcessor(0, server.service.text.vocabulary, prompt_ids=(5,))
    ids = np.arange(6, dtype=np.uint8).reshape(3, 1, 2)
    choice.push(Output("r", (7,), routed_experts=ids[:1]))
    choice.push(Output("r", (8,), routed_experts=ids[1:2]))
    choice.push(Output("r", (9,), finish_reason=FinishReason.LENGTH, routed_experts=ids))
    assert np.array_equal(decoded(as_json(choice.routed_experts_field)["routed_experts"]), ids)


def test_json_has_every_base64_in_its_place() -> None:
    long = bytes(range(256)) * (PIECE_BYTES // 100)
    texts = [Base64Text.of(data) for data in (b"", b"ab", long)]
    value = {"first": texts[:2], "text": 'ü"\\', "last": {"data": texts[2]}}
    encoded = [base64.b64encode(data).decode() for data in (b"", b"ab", long)]
    expected = {"first": encoded[:2], "text": 'ü"\\', "last": {"data": encoded[2]}}
    assert json.loads(to_json(value)) == expected
    with pytest.raises(TypeError, match="set cannot be written as JSON"):
        to_json({"a": {1}})


def test_more_than_a_response_may_have_is_refused(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    token_bytes = server.service.routed_token_bytes
    monkeypatch.setattr(admission, "MAX_BYTES", 2 * 100 * token_bytes)
    ids = [5] * 50
    assert len(array(ask(server, prompt=ids, max_tokens=50, n=2))) == 99
    answer = server.post(TEXT, json=BASE | ASKS | {"prompt": ids, "max_tokens": 51, "n": 2})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "return_routed_experts")
    assert "the experts of 202 tokens" in error["message"]
