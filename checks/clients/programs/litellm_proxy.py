"""The proxy of litellm as a process of its own, asked with openai: chat, streams and tools."""

import json
import secrets
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
MASTER_KEY = f"sk-{secrets.token_hex(32)}"  # without one, the proxy does not start
# hosted_vllm leaves out `strict` and `additionalProperties` of tools, and without those the example
# model writes further arguments for long.
PROVIDERS = CHAT, TOOLS = "hosted_vllm", "openai"
client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=MASTER_KEY, max_retries=0)


def chat() -> None:
    answer = client.chat.completions.create(model=CHAT, messages=MESSAGES, max_tokens=8)
    assert answer.choices[0].message.content


def chat_streamed() -> None:
    stream = client.chat.completions.create(
        model=CHAT, messages=MESSAGES, max_tokens=8, stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def required_tool() -> None:
    answer = client.chat.completions.create(
        model=TOOLS, messages=MESSAGES, tools=[TOOL], tool_choice="required", max_tokens=200
    )
    assert_arguments(answer.choices[0].message.tool_calls[0].function.arguments)


def tool_streamed() -> None:
    stream = client.chat.completions.create(
        model=TOOLS,
        messages=MESSAGES,
        tools=[TOOL],
        tool_choice="required",
        max_tokens=200,
        stream=True,
    )
    deltas = [chunk.choices[0].delta for chunk in stream if chunk.choices]
    calls = [call for delta in deltas for call in delta.tool_calls or () if call.index == 0]
    assert_arguments("".join(call.function.arguments or "" for call in calls))


def start(url: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start the proxy and wait until it is alive."""
    base = {"api_base": f"{url}/v1", "api_key": "none"}
    config = {
        "model_list": [
            {"model_name": name, "litellm_params": base | {"model": f"{name}/target"}}
            for name in PROVIDERS
        ],
        "general_settings": {"master_key": MASTER_KEY},
    }
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
