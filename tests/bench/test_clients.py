"""The table of clients: checks read from programs, locked versions, and its place in the page."""

import json
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from clients.__main__ import BEGIN, DOCS, END, table, with_table
from clients.checkpoint import TEMPLATE, write_tools_checkpoint
from clients.programs import (
    CLIENTS,
    LOCKS,
    NPM,
    PROGRAMS,
    CheckResult,
    ClientResult,
    client_environment,
    locked_version,
    read_checks,
)
from request_trace.__main__ import EXAMPLES


def test_every_client_has_a_program_and_a_locked_version() -> None:
    for client in CLIENTS:
        folder = PROGRAMS if client.lock else NPM
        assert (folder / client.file).is_file()
        assert locked_version(client)[0].isdigit()
    locks = {client.lock for client in CLIENTS if client.lock}
    assert {lock.stem for lock in LOCKS.glob("*.txt")} == locks


def test_checks_are_read_between_other_lines() -> None:
    output = 'x\n{"check": "chat", "error": ""}\n{"other": 1}\n{"check": "tools", "error": "400"}\n'
    assert read_checks(output) == (CheckResult("chat", ""), CheckResult("tools", "400"))


def test_the_table_lists_what_works_fails_and_is_not_installed() -> None:
    checks = (CheckResult("chat", ""), CheckResult("tools", "400"))
    results = [
        ClientResult(CLIENTS[0], "1.0", checks),
        ClientResult(CLIENTS[1], "2.0", checks[:1]),
        ClientResult(CLIENTS[2], "3.0", unavailable="no wheel"),
    ]
    assert [result.has_passed() for result in results] == [False, True, False]
    rows = table(results).splitlines()[2:]
    assert rows == [
        "| openai (Python) | 1.0 | chat | tools |",
        "| openai (npm) | 2.0 | chat | – |",
        "| langchain-openai | 3.0 | – | not installed: no wheel |",
    ]


def test_the_table_replaces_the_one_in_the_page() -> None:
    page = with_table(DOCS.read_text(), "| new |")
    assert f"{BEGIN}\n| new |\n{END}" in page
    assert with_table(page, "| newer |").count("| new") == 1
    with pytest.raises(ValueError, match="needs the lines"):
        with_table("# Clients", "| new |")


def test_clients_get_no_proxy_and_no_path_of_ours() -> None:
    given = {"HTTPS_PROXY": "x", "PYTHONPATH": "bench", "HOME": "/root"}
    found = client_environment(given)
    assert "HTTPS_PROXY" not in found
    assert "PYTHONPATH" not in found
    assert found["HOME"] == "/root"


def test_the_checkpoints_template_shows_tools_calls_and_results(tmp_path: Path) -> None:
    folder = write_tools_checkpoint(EXAMPLES / "target", tmp_path)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert config["chat_template"] == TEMPLATE
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
    ]
    template = ImmutableSandboxedEnvironment().from_string(TEMPLATE)
    shown = template.render(messages=messages, tools=[{"name": "f"}], add_generation_prompt=True)
    assert '<tools>\n{"name": "f"}\n</tools>' in shown
    assert '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>' in shown
    assert "<tool_response>\nsunny\n</tool_response>" in shown
    assert shown.endswith("<|im_start|>assistant\n")
