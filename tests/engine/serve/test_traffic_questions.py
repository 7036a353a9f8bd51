"""The questions of `make traffic`: every form, whole and streamed, from a real engine."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from checks.traffic.asking import NoAnswer, ask, asking
from checks.traffic.questions import ALL_QUESTIONS, LONG_QUESTIONS, SCHEMA, Form, Question
from tests.engine.serve.conftest import RunningServer, real_server

CALLS = (Form.TOOL_CALL, Form.RESPONSE_CALL, Form.MESSAGE_CALL)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    running = real_server({}, context_length=1024, reasoning_parser="qwen3")
    yield running.wait_ready()
    running.close()


def answers(server: RunningServer, question: Question) -> list[str]:
    async def run() -> list[str]:
        async with asking(f"{server.url}/v1", keeps_connections=True) as client:
            return [await ask(client, "echo", question, is_stream) for is_stream in (False, True)]

    return asyncio.run(run())


@pytest.mark.parametrize("form", Form, ids=lambda form: form.name)
def test_a_stream_has_the_parts_of_the_whole_answer(server: RunningServer, form: Form) -> None:
    questions = [each for each in (*ALL_QUESTIONS, *LONG_QUESTIONS) if each.form is form]
    for question in questions[:3]:
        whole, streamed = answers(server, question)
        assert whole == streamed != ""
        if form in CALLS:
            call = json.loads(whole)
            (arguments,) = (part for name, part in call.items() if name.startswith("arguments"))
            assert arguments.keys() == set(SCHEMA["required"])
        if form in (Form.REASONING, Form.MESSAGE_THINKING):
            assert json.loads(whole)["reasoning"].strip()


def test_what_is_refused_is_no_answer(server: RunningServer) -> None:
    async def run() -> None:
        async with asking(f"{server.url}/v1", keeps_connections=False) as client:
            for is_stream in (False, True):
                with pytest.raises(NoAnswer, match="status 404"):
                    await ask(client, "another model", ALL_QUESTIONS[0], is_stream)

    asyncio.run(run())
