"""`specdecode-engine chat` as a process, against real servers and one that it starts."""

import os
import re
import signal
import subprocess
import sys

import httpx
import pytest

from tests.engine.serve.conftest import EXAMPLES, wait_until
from tests.engine.serve.scripted import scripted_server
from tests.terminals import Terminal

STATUS = re.compile(r"\[(\d+) tokens, [\d.]+ tokens/s, first after \d+ ms, accept length [\d.]+\]")
QUESTION = "Count from one to twenty."


def start(*arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "specdecode_engine", "chat", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def run(*arguments, given="", **environment):
    process = start(*arguments, **environment)
    out, error = process.communicate(given, timeout=120)
    return process.returncode, out, error


def answer_of(server, *messages, **fields):
    body = {"messages": messages, "temperature": 0, "max_tokens": 30, **fields}
    answer = server.post("/v1/chat/completions", json=body).json()
    return answer["choices"][0]["message"]["content"], answer["usage"]


def user(text):
    return {"role": "user", "content": text}


def test_a_chat_prints_the_answers_of_one_conversation(drafting_server):
    first, usage = answer_of(drafting_server, user(QUESTION))
    turn = {"role": "assistant", "content": first}
    second, _ = answer_of(drafting_server, user(QUESTION), turn, user("Again."))
    alone, _ = answer_of(drafting_server, user("Again."))
    given = f"{QUESTION}\nAgain.\n/clear\nAgain.\n/exit\nnot read\n"
    flags = ("--temperature", "0", "--max-tokens", "30")
    code, out, error = run(drafting_server.url, *flags, given=given)
    assert (code, error) == (0, "")
    answers = [part for part in STATUS.split(out)[::2] if part.strip()]
    assert [text.strip() for text in answers] == [first.strip(), second.strip(), alone.strip()]
    tokens = f"[{usage['completion_tokens']} tokens"
    accept_length = f"accept length {usage['specdecode']['accept_length']:.2f}]"
    assert out.index(tokens) < out.index(accept_length) < out.index(second.strip()[-8:])


def test_a_chat_with_a_model_serves_it_and_ends_the_server():
    draft = ("--speculative-algorithm", "STANDALONE")
    path = ("--speculative-draft-model-path", str(EXAMPLES / "draft"))
    code, out, error = run(
        str(EXAMPLES / "target"), "--max-tokens", "20", *draft, *path, given=f"{QUESTION}\n"
    )
    assert (code, len(STATUS.findall(out))) == (0, 1), error
    (port,) = re.findall(r"listening on 127.0.0.1 port (\d+)", error)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/health")


def test_a_model_that_cannot_be_served_ends_the_chat(tmp_path):
    code, out, error = run(str(tmp_path / "absent"))
    assert (code, out) == (1, "")
    assert "ended with status 2 before it was ready" in error
    assert str(tmp_path / "absent") in error


def test_a_server_that_does_not_answer_is_named_with_the_remedy(free_port):
    url = f"http://127.0.0.1:{free_port}"
    code, out, error = run(url, given="hi\n")
    assert (code, out) == (1, "")
    assert url in error
    assert "specdecode-engine serve MODEL" in error


def test_flags_of_a_server_are_refused_with_a_url():
    code, _, error = run("http://127.0.0.1:1", "--page-size", "8")
    assert code == 2
    assert "--page-size 8" in error


def test_a_key_is_read_from_the_environment_and_never_shown(start_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-one\n")
    server = start_server(api_key_path=keys)
    code, _, error = run(server.url, given="hi\n")
    assert code == 1
    assert "status 401" in error
    assert "SPECDECODE_API_KEY" in error
    flags = ("--max-tokens", "5")
    code, out, error = run(server.url, *flags, given="hi\n", SPECDECODE_API_KEY="sk-one")
    assert (code, error) == (0, "")
    assert "5 tokens" in out
    assert "sk-one" not in out


def test_a_key_that_is_missing_is_read_without_echo(start_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-hidden\n")
    server = start_server(api_key_path=keys)
    words = ("-m", "specdecode_engine", "chat", server.url, "--max-tokens", "5")
    terminal = Terminal([sys.executable, *words], {**os.environ})
    terminal.read_until("API key: ")
    terminal.write("sk-hidden\n")
    terminal.read_until("> ")
    terminal.write("hello\n")
    terminal.read_until("5 tokens")
    assert terminal.exit() == 0
    assert "sk-hidden" not in terminal.text


def test_a_refused_message_ends_a_chat_from_a_pipe(drafting_server):
    code, _, error = run(drafting_server.url, "--temperature", "7", given="hi\n")
    assert code == 1
    assert "status 400" in error
    assert "temperature" in error


def test_ctrl_c_stops_an_answer_and_the_chat_goes_on(start_process):
    engine = start_process(step_seconds=0.1)
    process = start(engine.url)
    process.stdin.write("hello there\n")
    process.stdin.flush()
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate("/exit\n", timeout=60)
    assert (process.returncode, error) == (0, "")
    assert "[stopped]" in out
    assert "accept length" not in out
    info = f"{engine.management_url}/server_info"
    wait_until(lambda: httpx.get(info).json()["snapshot"]["running_requests"] == 0)


def test_reasoning_is_before_the_answer(write_model, tmp_path):
    with scripted_server(write_model, tmp_path, 3, reasoning_parser="qwen3") as server:
        code, out, error = run(server.url, given="<think>why not</think>the fox\n")
    assert (code, error) == (0, "")
    assert out.startswith("why not\nthe fox\n[")


def test_the_end_of_the_input_ends_the_chat(start_server):
    code, out, error = run(start_server().url)
    assert (code, out, error) == (0, "", "")
