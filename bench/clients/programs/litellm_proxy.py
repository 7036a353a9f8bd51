"""The proxy of litellm as a process of its own, asked with openai: chat, streams and tools."""

import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import openai
from checks import MESSAGES, TOOL, assert_arguments, run

START_SECONDS = 500
_PORT = socket.create_server(("127.0.0.1", 0))
port = _PORT.getsockname()[1]
_PORT.close()
client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def chat() -> None:
    answer = client.chat.completions.create(model="target", messages=MESSAGES, max_tokens=8)
    assert answer.choices[0].message.content


def chat_streamed() -> None:
    stream = client.chat.completions.create(
        model="target", messages=MESSAGES, max_tokens=8, stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def required_tool() -> None:
    answer = client.chat.completions.create(
        model="target", messages=MESSAGES, tools=[TOOL], tool_choice="required", max_tokens=200
    )
    assert_arguments(answer.choices[0].message.tool_calls[0].function.arguments)


def tool_streamed() -> None:
    stream = client.chat.completions.create(
        model="target",
        messages=MESSAGES,
        tools=[TOOL],
        tool_choice="required",
        max_tokens=200,
        stream=True,
    )
    calls = [chunk.choices[0].delta.tool_calls for chunk in stream if chunk.choices]
    assert_arguments("".join(c[0].function.arguments or "" for c in calls if c))


def start(url: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start the proxy and wait until it is alive."""
    parameters = {"model": "hosted_vllm/target", "api_base": f"{url}/v1", "api_key": "none"}
    config = {"model_list": [{"model_name": "target", "litellm_params": parameters}]}
    file = folder / "config.yaml"
    file.write_text(json.dumps(config))
    program = Path(sys.executable).with_name("litellm")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "--config", file, "--port", str(port), "--host", "127.0.0.1"],
            stdout=log,
            stderr=log,
        )
    ends_s = time.monotonic() + START_SECONDS
    while time.monotonic() < ends_s and process.poll() is None:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health/liveliness").is_success:
                return process
        except httpx.TransportError:
            time.sleep(0.5)
    process.kill()
    sys.exit(f"the proxy did not start ({process.wait()}): {(folder / 'log').read_text()[-2000:]}")


with tempfile.TemporaryDirectory() as folder:
    proxy = start(sys.argv[1], Path(folder))
    try:
        run((chat, chat_streamed, required_tool, tool_streamed))
    finally:
        proxy.terminate()
        proxy.wait()
