"""A server with an engine of two ranks: answers of a draft are the same; one rank ends with all."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from specdecode_api.report import TerminationMessage, TerminationReason
from tests.engine.serve.conftest import EXAMPLES, wait_until
from tests.engine.serve.own_process import (
    Call,
    Engine,
    has_ended,
    ranks_of,
    read_stream,
    running_engine,
)
from tests.engine.serve.test_resumed_requests import comparable, post

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SAMPLED = {"temperature": 1, "top_p": 0.9, "seed": 7}
MESSAGES = [{"role": "user", "content": "What is 3 + 4?"}]
CALLS: dict[str, Call] = {
    "greedy": (COMPLETIONS, {"prompt": "the fox", "max_tokens": 80, "temperature": 0}),
    "scored": (
        COMPLETIONS,
        {"prompt": ["a cat", "the dog"], "max_tokens": 50, "echo": True, "logprobs": 2, **SAMPLED},
    ),
    "penalties": (
        COMPLETIONS,
        {"prompt": "one two", "max_tokens": 90, "presence_penalty": 0.7, "n": 2, **SAMPLED},
    ),
    "grammar": (
        CHAT,
        {
            "messages": MESSAGES,
            "max_tokens": 90,
            "structured_outputs": {"regex": "[a-z ]{60}"},
            "seed": 7,
        },
    ),
    "long prompt": (COMPLETIONS, {"prompt": "fox and dog " * 90, "max_tokens": 60, **SAMPLED}),
}
PROMPT = {"prompt": "the quick brown fox", "temperature": 0, "ignore_eos": True}
RESUMED = "specdecode_resumed_requests_total"
TABLE = {"table": {"1": {"candidate_steps": [0, 5]}, "3": {"candidate_steps": [1]}}}
UNPREPARED = {"table": {"1": {"candidate_steps": [2]}}}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("ranks")
    yield from running_engine(folder, tensor_parallel_size=2, speculative_num_steps=3)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Two ranks without a draft."""
    nothing = dict.fromkeys(
        ("speculative_draft_model_path", "speculative_adaptive_policy", "speculative_algorithm")
    )
    folder = tmp_path_factory.mktemp("plain")
    yield from running_engine(folder, tensor_parallel_size=2, **nothing)


@pytest.fixture(scope="module")
def expected(plain: Engine) -> dict[str, Any]:
    """The answers of plain decoding, one request at a time."""
    return {name: comparable(post(plain.url, call)) for name, call in CALLS.items()}


def assert_answers_equal(engine: Engine, expected: dict[str, Any]) -> None:
    with ThreadPoolExecutor(2 * len(CALLS)) as pool:
        answers = [
            (name, pool.submit(post, engine.url, call)) for name, call in (*CALLS.items(),) * 2
        ]
        for name, answer in answers:
            assert comparable(answer.result(120)) == expected[name], name


def test_answers_of_a_draft_are_those_of_plain_decoding_under_every_table(
    engine: Engine, expected: dict[str, Any]
) -> None:
    assert_answers_equal(engine, expected)
    for table, status in ((UNPREPARED, 409), (TABLE, 200)):
        reply = httpx.put(engine.url + "/speculation/table", json=table, timeout=30)
        assert reply.status_code == status, reply.text
    assert_answers_equal(engine, expected)
    assert engine.metric("specdecode_accepted_tokens_total") > 0
    facts = httpx.get(engine.url + "/server_info", timeout=10).json()["facts"]
    assert facts["tensor_parallel_size"] == 2
    assert len(ranks_of(engine.process.pid)) == 2


def test_a_draft_is_refused_until_the_pod_is_replaced(engine: Engine) -> None:
    body = {"path": str(EXAMPLES / "draft")}
    reply = httpx.put(engine.url + "/speculation/draft", json=body, timeout=30)
    assert reply.status_code == 409, reply.text
    assert "replace the pod" in reply.text


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stream_survives_the_death_of_any_rank(engine: Engine, rank: int) -> None:
    body = PROMPT | {"max_tokens": 600}
    unbroken = comparable(post(engine.url, (COMPLETIONS, body | {"stream": True})))
    begun, resumed = list[str](), engine.metric(RESUMED)
    with ThreadPoolExecutor(1) as pool:
        before = ranks_of(engine.process.pid)
        stream = pool.submit(read_stream, engine.url, (COMPLETIONS, body), "stream", begun)
        wait_until(lambda: bool(begun))
        os.kill(before[rank], signal.SIGKILL)
        assert comparable(stream.result(120)) == unbroken
    after = ranks_of(engine.process.pid)
    assert len(after) == 2
    assert not {*before} & {*after}
    assert all(has_ended(one) for one in before)
    assert engine.metric(RESUMED) == resumed + 1
    assert f"the engine process of rank {rank} was killed by SIGKILL" in engine.log_text()


def test_no_rank_outlives_a_server_that_is_killed(tmp_path: Path) -> None:
    server = running_engine(tmp_path, tensor_parallel_size=2)
    engine = next(server)
    ranks = ranks_of(engine.process.pid)
    assert len(ranks) == 2
    engine.process.kill()
    engine.process.wait()
    wait_until(lambda: all(has_ended(one) for one in ranks))


def test_a_follower_that_cannot_start_ends_the_server_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = tmp_path / "words"
    monkeypatch.setenv("SPECDECODE_TERMINATION_MESSAGE_PATH", str(words))
    engine = Engine(
        tmp_path / "log", 0, {"tensor-parallel-size": 2, "cpu-affinity": "1000-1001", "threads": 1}
    )
    assert engine.process.wait(120) == 1
    engine.close()
    message = TerminationMessage.decode(words.read_text())
    assert message is not None
    assert message.reason == TerminationReason.ENGINE_FAILED
    assert "cpu_affinity 1000-1001" in message.message
