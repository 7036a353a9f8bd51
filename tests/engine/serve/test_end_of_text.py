"""Answers end where tokenizer and chat template end them; defaults of generation_config.json."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.serve.conftest import EXAMPLES, RunningServer, real_server

QUESTION: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is the capital of Portugal?"}],
    "temperature": 0,
    "max_tokens": 120,
}
DEFAULTS = {"do_sample": True, "temperature": 0.7, "top_k": -1, "top_p": 0}


@pytest.fixture(scope="module")
def eos_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of the example model, whose configs name another EOS than its tokenizer.

    Its sampling defaults turn top_k off, and keep the likeliest token.
    """
    folder = tmp_path_factory.mktemp("models") / "elsewhere"
    shutil.copytree(EXAMPLES / "target", folder)
    for name in ("config.json", "generation_config.json"):
        content = json.loads((folder / name).read_text())
        edit = {"eos_token_id": 0} | (DEFAULTS if name == "generation_config.json" else {})
        (folder / name).write_text(json.dumps(content | edit))
    running = real_server({}, folder=folder)
    yield running.wait_ready()
    running.close()


def test_http_01_the_eos_of_the_tokenizer_ends_an_answer(
    eos_elsewhere: RunningServer, built_server: RunningServer
) -> None:
    answers = [
        server.post("/v1/chat/completions", json=QUESTION).json()
        for server in (eos_elsewhere, built_server)
    ]
    (choice,), (expected,) = (answer["choices"] for answer in answers)
    assert choice["message"]["content"] == choice["message"]["content"].rstrip("\n")
    assert (choice["finish_reason"], choice["message"]) == ("stop", expected["message"])
    assert answers[0]["usage"]["completion_tokens"] == 38
    listed = eos_elsewhere.get("/server_info").json()["stop_tokens"]
    assert [(each["id"], each["sources"]) for each in listed] == [
        (0, ["config.json", "generation_config.json"]),
        (2, ["tokenizer_config.json", "special_tokens_map.json", "chat template"]),
    ]


def test_ignore_eos_and_min_tokens_count_every_stop_token(eos_elsewhere: RunningServer) -> None:
    for fields in ({"ignore_eos": True}, {"min_tokens": 42}):
        body = QUESTION | {"max_tokens": 42} | fields
        answer = eos_elsewhere.post("/v1/chat/completions", json=body).json()
        assert answer["usage"]["completion_tokens"] == 42


def test_http_07_top_k_of_minus_one_starts_and_top_p_of_zero_is_greedy(
    eos_elsewhere: RunningServer, built_server: RunningServer
) -> None:
    """A request's own top_p replaces the default."""

    def text(server: RunningServer, **fields: object) -> str:
        body = {"prompt": "the quick brown fox", "max_tokens": 12, "ignore_eos": True, **fields}
        return str(server.post("/v1/completions", json=body).json()["choices"][0]["text"])

    greedy = text(built_server, temperature=0)
    assert [text(eos_elsewhere, seed=seed, temperature=1.5) for seed in (1, 2)] == [greedy] * 2
    assert text(built_server, temperature=1.5, seed=3, top_p=1e-300) == greedy
    free = {"temperature": 1.5, "top_p": 1}
    assert text(eos_elsewhere, seed=1, **free) != text(eos_elsewhere, seed=2, **free)
    assert text(built_server, seed=1) == text(built_server, seed=2) == greedy  # do_sample: false


@pytest.fixture
def without_eos(
    start_server: Callable[..., RunningServer], write_model: Callable[..., Path], tmp_path: Path
) -> RunningServer:
    """An echo server of a model of which only the chat template shows an end, <|end|>."""
    folder = write_model(tmp_path / "without")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return start_server(folder=folder)


def test_the_templates_end_ends_answers_of_chat_only(without_eos: RunningServer) -> None:
    """The model repeats its prompt, in which <|end|> follows the message."""
    message = {"role": "user", "content": "the quick brown fox"}
    chat = without_eos.post("/v1/chat/completions", json={"messages": [message], "max_tokens": 40})
    (choice,) = chat.json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"].endswith("user\nthe quick brown fox")
    prompt = "the quick<|end|> brown fox"
    text = without_eos.post("/v1/completions", json={"prompt": prompt, "max_tokens": 40})
    assert text.json()["choices"][0]["finish_reason"] == "length"
    (listed,) = without_eos.get("/server_info").json()["stop_tokens"]
    assert listed == {
        "id": 0, "token": "<|end|>", "sources": ["chat template"], "chat_only": True,
    }  # fmt: skip


def test_a_constrained_answer_ends_with_the_templates_end(without_eos: RunningServer) -> None:
    """Grammars are not refused for a model that only the template shows an end of."""
    message = {"role": "user", "content": "abc"}
    for path, asked in (
        ("completions", {"prompt": "abc<|end|>"}),
        ("chat/completions", {"messages": [message]}),
    ):
        fields = {"guided_regex": "[a-z]+", "max_tokens": 40, **asked}
        answer = without_eos.post(f"/v1/{path}", json=fields)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["finish_reason"] == "stop"
