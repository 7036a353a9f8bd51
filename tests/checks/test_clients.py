"""The table of clients: checks read from programs, locked versions, and its place in the page."""

import pytest

from checks.clients.__main__ import DOCS, table
from checks.clients.programs import (
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
from checks.harness.page_table import marks, with_table


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
        f"| {CLIENTS[2].name} | 3.0 | – | not installed: no wheel |",
    ]


def test_the_table_replaces_the_one_in_the_page() -> None:
    begin, end = marks("clients")
    page = with_table(DOCS.read_text(), "clients", "| new |")
    assert f"{begin}\n| new |\n{end}" in page
    assert with_table(page, "clients", "| newer |").count("| new") == 1
    with pytest.raises(ValueError, match="needs the lines"):
        with_table("# Clients", "clients", "| new |")


def test_clients_get_no_proxy_and_no_path_of_ours() -> None:
    given = {"HTTPS_PROXY": "x", "PYTHONPATH": "bench", "HOME": "/root"}
    found = client_environment(given)
    assert "HTTPS_PROXY" not in found
    assert "PYTHONPATH" not in found
    assert found["HOME"] == "/root"
