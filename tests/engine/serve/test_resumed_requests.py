"""Requests whose engine process dies: the next one continues them, over real HTTP."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from specdecode_api.metrics.core import EMITTED_TOKENS
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.serve.engine.async_engine import RETRIES, AsyncEngine
from specdecode_engine.serve.engine.engine_process import in_process
from specdecode_engine.serve.engine.messages import Started
from tests.engine.serve.conftest import RunningServer, echo_boot, real_server, wait_until
from tests.engine.serve.echo_core import load_echo
from tests.engine.serve.echo_process import EchoProcess
from tests.engine.serve.own_process import (
    BODY,
    Call,
    Engine,
    engine_of,
    has_ended,
    metric,
    running_engine,
    stopped_streams,
)
from tests.streamed_answers import plain_usage, read_answer

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
CONTEXT, TOKENS = 2048, 600
SAMPLED = {"temperature": 1, "top_p": 0.9, "presence_penalty": 0.5, "seed": 11}
MESSAGES = [{"role": "user", "content": "Which animal do you see?"}]
TEXT = {"prompt": "the quick brown fox", "max_tokens": TOKENS, "ignore_eos": True}
ANSWER = {"messages": MESSAGES, "max_tokens": TOKENS, "ignore_eos": True}
NOTE = {"type": "string", "minLength": 200, "maxLength": 220}
TOOL = {
    "name": "see",
    "parameters": {
        "type": "object",
        "properties": {"note": NOTE},
        "required": ["note"],
        "additionalProperties": False,
    },
    "strict": True,
}
USAGE = {"stream_options": {"include_usage": True}}
STREAMS: dict[str, Call] = {
    "greedy": (COMPLETIONS, TEXT | {"temperature": 0}),
    "two choices": (CHAT, ANSWER | SAMPLED | {"n": 2, "logprobs": True, "top_logprobs": 2} | USAGE),
    "tool call": (
        CHAT,
        {
            "messages": MESSAGES, "max_tokens": 1000, **SAMPLED, **USAGE,
            "tools": [{"type": "function", "function": TOOL}], "tool_choice": "required",
        },
    ),
    "items": (
        RESPONSES,
        {"input": "hello", "max_output_tokens": TOKENS, "ignore_eos": True, "seed": 3},
    ),
}  # fmt: skip
WHOLE: dict[str, Call] = {
    "greedy": (COMPLETIONS, TEXT | {"temperature": 0}),
    "two prompts": (
        COMPLETIONS,
        TEXT | SAMPLED | {"prompt": ["a cat", "the dog"], "echo": True, "logprobs": 2},
    ),
    "grammar": (
        CHAT,
        {
            "messages": MESSAGES, "max_tokens": 1000, **SAMPLED, "logprobs": True,
            "structured_outputs": {"regex": "[a-z ]{250}"},
        },
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A server whose engine dies twice in the tests that share it."""
    folder = tmp_path_factory.mktemp("engine")
    yield from running_engine(
        folder, max_running_requests=9, context_length=CONTEXT, tool_call_parser="hermes"
    )


@pytest.fixture(scope="module")
def plain() -> Iterator[RunningServer]:
    """A server that does not speculate, and whose engine does not die."""
    server = real_server({}, context_length=CONTEXT, tool_parser="hermes")
    yield server.wait_ready()
    server.close()


def post(url: str, call: Call) -> str:
    answer = httpx.post(url + call[0], json=call[1], timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.text


def comparable(text: str) -> Any:
    """An answer but for ids, times and figures of speculation."""
    if text.startswith("{"):
        document = json.loads(text)
        return document["choices"], plain_usage(document["usage"])
    answer = read_answer(text)
    assert answer.is_complete, text[-500:]
    choices = [
        (one.content, one.reasoning, [call[1:] for call in one.calls.values()], one.scored,
         one.finish_reason)
        for _, one in sorted(answer.choices.items())
    ]  # fmt: skip
    assert answer.sequence_numbers == list(range(len(answer.sequence_numbers)))
    return choices, answer.usage, answer.errors


def test_requests_of_a_killed_engine_get_the_answers_of_plain_decoding(
    engine: Engine, plain: RunningServer
) -> None:
    before, server = engine_of(engine.process.pid), engine.process.pid
    started_s = engine.metric("specdecode_process_start_time_seconds")
    with ThreadPoolExecutor(32) as pool:
        os.kill(before, signal.SIGSTOP)
        whole = {name: pool.submit(post, engine.url, call) for name, call in WHOLE.items()}
        wait_until(lambda: engine.running_requests() == len(whole))
        streams = stopped_streams(engine, pool, STREAMS)  # they begin after the others
        waiting = [pool.submit(engine.text, max_tokens=40) for _ in range(6)]
        begun = (*whole.values(), *streams.values())

        def unfinished() -> int:
            return sum(not each.done() for each in begun)

        # On a slow machine some may end before all streams have begun.
        wait_until(lambda: engine.running_requests() == unfinished() + len(waiting), 60)
        continued = unfinished()
        assert continued
        engine.kill_engine()
        assert httpx.get(engine.url + "/live", timeout=10).status_code == 200
        refused = httpx.post(engine.url + "/v1/completions", json=BODY, timeout=10)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        wait_until(engine.is_ready, 120)
        texts = [each.result(120) for each in waiting]
        answers = {name: comparable(each.result(120)) for name, each in whole.items()}
        streamed = {name: comparable(each.result(120)) for name, each in streams.items()}
    for name, call in WHOLE.items():
        assert answers[name] == comparable(post(plain.url, call)), name
    for name, (path, body) in STREAMS.items():
        expected = comparable(post(plain.url, (path, body | {"stream": True})))
        assert streamed[name] == expected, name
    short = post(plain.url, ("/v1/completions", BODY | {"max_tokens": 40}))
    assert texts == [json.loads(short)["choices"][0]["text"]] * len(waiting)
    assert (engine.process.pid, engine.process.poll()) == (server, None)
    assert engine_of(server) != before
    assert has_ended(before)
    assert engine.metric("specdecode_resumed_requests_total") == continued
    assert engine.metric('specdecode_engine_failures_total{reason="EngineFailed"}') == 1
    assert engine.metric("specdecode_process_start_time_seconds") > started_s


def test_a_stream_that_a_client_gives_up_is_not_continued(engine: Engine) -> None:
    resumed = engine.metric("specdecode_resumed_requests_total")
    body = BODY | {"max_tokens": 1900, "stream": True}
    with httpx.stream("POST", engine.url + "/v1/completions", json=body, timeout=60) as response:
        next(response.iter_lines())
        engine.kill_engine()
    wait_until(lambda: engine.running_requests() == 0)
    wait_until(engine.is_ready, 120)
    engine.text(max_tokens=1)
    assert engine.metric("specdecode_running_requests") == 0
    assert engine.metric("specdecode_emitted_tokens_total") == 0
    assert engine.metric("specdecode_resumed_requests_total") == resumed


def test_answers_continue_across_breaks_after_every_third_token(
    start_process: Callable[..., EchoProcess], start_server: Callable[..., RunningServer]
) -> None:
    """Stop strings, the echo and its log-probabilities are those of the unbroken answer."""
    unbroken = start_server(tokens_per_step=1)
    base = {"prompt": "the quick brown fox jumps over the lazy dog", "max_tokens": 6}
    scored = json.loads(post(unbroken.url, (COMPLETIONS, base | {"logprobs": 1})))
    tokens = scored["choices"][0]["logprobs"]["tokens"]
    stop = tokens[1][-1:] + tokens[2] + tokens[3] + tokens[4][:1]
    fields: list[dict[str, Any]] = [
        {"n": 2, "logprobs": 2},
        {"echo": True, "logprobs": 1},
        {"stop": stop},
        {"stop": stop, "min_tokens": 2, "include_stop_str_in_output": True},
    ]
    streamed = {"stream": True} | USAGE
    bodies = [base | each | more for each in fields for more in ({}, streamed)]
    calls = [(COMPLETIONS, body) for body in (*bodies, base | {"prompt_logprobs": 1})]
    server = start_process(0.4, engine_process="on", core={"failing_step": 4})
    with ThreadPoolExecutor(len(calls)) as pool:
        answers = [pool.submit(post, server.url, call) for call in calls]
        got = [comparable(each.result(60)) for each in answers]
    for call, answer in zip(calls, got, strict=True):
        assert answer == comparable(post(unbroken.url, call)), call
    assert metric(server.url, "specdecode_resumed_requests_total") >= len(calls)


def test_a_request_that_ends_its_engines_ends_with_an_error_and_not_with_the_server(
    start_process: Callable[..., EchoProcess],
) -> None:
    """Tokens in between do not save it."""
    server = start_process(0.4, engine_process="on", core={"failing_step": 4})
    url, body = server.url + COMPLETIONS, {"prompt": "the quick brown fox", "max_tokens": 12}
    with ThreadPoolExecutor(2) as pool:
        sent = [
            pool.submit(httpx.post, url, json=body | {"stream": is_stream}, timeout=60)
            for is_stream in (True, False)
        ]
        streamed, whole = (each.result(60) for each in sent)
    (error,) = read_answer(streamed.text).errors
    assert error["code"] == whole.json()["error"]["code"] == "engine_failed"
    assert "RuntimeError in the engine core" in error["message"]
    assert whole.status_code == 500
    assert server.process.poll() is None
    wait_until(server.is_ready, 60)
    short = httpx.post(url, json=body | {"max_tokens": 3}, timeout=30)
    assert short.status_code == 200
    failures = metric(server.url, 'specdecode_engine_failures_total{reason="EngineFailed"}')
    assert failures == 1 + RETRIES


async def test_a_choice_that_is_aborted_while_no_engine_runs_is_not_continued(
    model_folder: Path,
) -> None:
    is_lost = asyncio.Event()

    async def prepare(started: Started) -> None:
        assert started.context_length

    engine = AsyncEngine(
        in_process(
            echo_boot(model_folder),
            partial(load_echo, tokens_per_step=1, failing_step=4),
            time.monotonic,
        ),
        prepare,
        on_failure=lambda error: None,
        on_lost=lambda error: is_lost.set(),
    )
    engine.start()
    params = SamplingParams(seed=0, max_tokens=6, temperature=0.0, ignore_eos=True)
    names, prompt = ("kept", "dropped"), (5, 6, 7, 8, 9, 10)
    async with engine.stream(tuple(Request(name, prompt, params) for name in names)) as outputs:
        await is_lost.wait()
        engine.abort(outputs, ["dropped"])
        got = [output async for output in outputs]
    assert {output.request_id for output in got} == {"kept"}
    assert [token for output in got for token in output.token_ids] == [*prompt]
    assert (await engine.refresh_snapshot())[EMITTED_TOKENS] == 3
    assert await engine.close(5)
