"""kill -9 of real engines under a real router: every answer is the unbroken one."""

import json
import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.router.programs import EngineProgram, RouterProgram, wait_until
from tests.streamed_answers import Answer, read_answer

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BLOCKS = "/v1/messages"
TOOL = {
    "name": "see",
    "parameters": {
        "type": "object",
        "properties": {"note": {"type": "string", "maxLength": 30}},
        "required": ["note"],
        "additionalProperties": False,
    },
    "strict": True,
}
SAMPLED = {"temperature": 1, "top_p": 0.9, "seed": 11}
MESSAGES = [{"role": "user", "content": "Which animal do you see?"}]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "text": (COMPLETIONS, {"prompt": "the quick brown fox", "max_tokens": 400, "ignore_eos": True}),
    "two choices": (
        CHAT,
        {"messages": MESSAGES, "n": 2, "max_tokens": 300, "ignore_eos": True, "logprobs": True},
    ),
    "items": (RESPONSES, {"input": "Which?", "max_output_tokens": 300, "ignore_eos": True}),
    "blocks": (BLOCKS, {"messages": MESSAGES, "max_tokens": 300, "ignore_eos": True}),
}  # fmt: skip


def body_of(name: str, **changes: Any) -> tuple[str, dict[str, Any]]:
    path, body = CASES[name]
    has_own_usage = path in (RESPONSES, BLOCKS)
    options = {} if has_own_usage else {"stream_options": {"include_usage": True}}
    return path, {**body, **SAMPLED, "stream": True, **options, **changes}


def engine_of(router: RouterProgram, engines: list[EngineProgram]) -> EngineProgram:
    """The engine that computes the only request."""
    known = httpx.get(f"{router.management_url}/server_info", timeout=10).json()["engines"]
    (address,) = [each["address"] for each in known if each["requests"]]
    return next(each for each in engines if each.address == address)


@pytest.fixture
def router(start_router, engines) -> RouterProgram:
    router: RouterProgram = start_router(engines)
    return router


def without_ids(answer: Answer) -> Any:
    choices = [
        (each.content, each.reasoning, each.scored, each.finish_reason)
        for _, each in sorted(answer.choices.items())
    ]
    return choices, answer.usage, answer.is_complete, answer.errors


def test_a_stalled_engine_is_left_and_its_stream_continues(router, engines):
    path, body = body_of("text")
    unbroken = read_answer(httpx.post(engines[0].url + path, json=body, timeout=60).text)
    text, stopped = "", None
    with httpx.stream("POST", router.url + path, json=body, timeout=60) as response:
        for piece in response.iter_text():
            text += piece
            if stopped is None and text.count("\n\n") >= 20:
                stopped = engine_of(router, engines)
                stopped.signal(signal.SIGSTOP)
    assert stopped is not None
    stopped.signal(signal.SIGCONT)
    assert without_ids(read_answer(text)) == without_ids(unbroken)
    assert router.metric("specdecode_router_resumed_total", reason="stalled") == 1
    wait_until(lambda: router.count_ready() == 3)


def test_a_stream_continues_when_the_engine_process_of_a_server_dies(
    start_router, engines, token_file
):
    path, body = body_of("text", max_tokens=900)
    other = engines[0]
    unbroken = read_answer(httpx.post(other.url + path, json=body, timeout=60).text)
    server = EngineProgram(token_file, "--engine-process", "on").wait_ready()
    try:
        other.signal(signal.SIGSTOP)
        router = start_router([server, other], ready=1)
        text, is_killed = "", False
        with httpx.stream("POST", router.url + path, json=body, timeout=60) as response:
            for piece in response.iter_text():
                text += piece
                if not is_killed and text.count("\n\n") >= 20:
                    is_killed = True
                    kill_engine_process(server)
                    other.signal(signal.SIGCONT)
        assert without_ids(read_answer(text)) == without_ids(unbroken)
        assert router.metric("specdecode_router_resumed_total", reason="failed") == 1
        wait_until(lambda: router.count_ready() == 2)
    finally:
        other.signal(signal.SIGCONT)
        server.close()


def kill_engine_process(server: EngineProgram) -> None:
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for child in children:
        if b"engine.child" in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(int(child), signal.SIGKILL)


def test_all_answers_survive_the_kill_of_two_of_three_engines(router, engines):
    plain = [
        {
            "prompt": f"request {number} of", "seed": number, "temperature": 1, "max_tokens": 200,
            "ignore_eos": True, "stream": bool(number % 3), "n": 1 + number % 2,
        }
        for number in range(9)
    ]  # fmt: skip
    requests = [*(body_of(name) for name in CASES), *((COMPLETIONS, body) for body in plain)]
    expected = [httpx.post(engines[0].url + path, json=body, timeout=60) for path, body in requests]
    found: list[httpx.Response | None] = [None] * len(requests)

    def send(number: int) -> None:
        path, body = requests[number]
        found[number] = httpx.post(router.url + path, json=body, timeout=120)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(len(requests))]
    for thread in threads:
        thread.start()
    alive = random.sample(engines, len(engines))
    for _ in range(2):
        wait_until(lambda: kill_one(router, alive), 60, "two requests on one engine")
    for thread in threads:
        thread.join(120)
    for (path, body), got, wanted in zip(requests, found, expected, strict=True):
        assert got is not None
        assert got.status_code == 200, got.text
        assert comparable(body, got.text) == comparable(body, wanted.text), path
    assert router.metric("specdecode_router_resumed_total", reason="lost") >= 4
    assert router.metric("specdecode_router_unresumable_total") == 0


def kill_one(router: RouterProgram, alive: list[EngineProgram]) -> bool:
    """Kill the first engine with two requests and take it from the list; False if there is none.

    It is stopped before they are counted, so that they do not end between that and the kill.
    """
    name = "specdecode_router_running_requests"
    for engine in alive:
        engine.signal(signal.SIGSTOP)
        if router.metric(name, engine=engine.address) >= 2:
            engine.kill()
            alive.remove(engine)
            return True
        engine.signal(signal.SIGCONT)
    return False


def comparable(body: dict[str, Any], response: str) -> Any:
    if body["stream"]:
        answer = read_answer(response)
        assert len(answer.ids) == 1
        assert answer.sequence_numbers == list(range(len(answer.sequence_numbers)))
        return without_ids(answer)
    document = json.loads(response)
    texts = [(each["text"], each["finish_reason"]) for each in document["choices"]]
    return texts, document["usage"]["completion_tokens"]
