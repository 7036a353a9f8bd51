"""The program's words: flags, units, and sentences for what goes wrong."""

import argparse
import re
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from specdecode_operator.plugin import wording
from specdecode_operator.plugin.__main__ import _console, _frames, _parser, main
from specdecode_operator.plugin.errors import PluginError, nobody, refusal, unreachable


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.9, "0s"), (119, "119s"), (120, "2m0s"), (601, "10m"), (10800, "3h"),
     (172800, "2d")],
)  # fmt: skip
def test_ages(seconds, text):
    assert wording.age(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("2h", 7200), ("1d", 86400)]
)
def test_ages_are_read(text, seconds):
    assert wording.seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "0s", "-1s", "1w", "1.5h"])
def test_what_is_no_age_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="use 90s"):
        wording.seconds_of(text)


@pytest.mark.parametrize(
    ("code", "what", "words"),
    [
        (401, "pods", "log in again"),
        (403, "pods", "request the role view"),
        (403, "pods/proxy of chat-1", "the role edit (or get on pods/proxy)"),
        (404, "specdecodedeployments.specdecode.io", "no CRD specdecodedeployments"),
        (500, "pods", "pods: went wrong (500)"),
    ],
)
def test_refusals_name_the_remedy(code, what, words):
    assert words in str(refusal(code, "went wrong", what, "user jane"))


def test_nobody_and_nothing_there():
    assert "there are a, b" in str(nobody("chat", "default", ["a", "b"]))
    assert "there is none" in str(nobody("chat", "default", []))
    assert "kubectl cluster-info" in str(unreachable("https://x", "refused"))


def test_no_kubeconfig(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    assert main(["status"]) == 1
    assert f"no file {tmp_path}/absent; name one with --kubeconfig" in capsys.readouterr().err


def test_an_unknown_context(capsys, tmp_path):
    file = tmp_path / "config"
    file.write_text("{apiVersion: v1, kind: Config, contexts: [], clusters: [], users: []}")
    assert main(["top", "--kubeconfig", str(file), "--context", "moon"]) == 1
    error = capsys.readouterr().err
    assert "moon" in error
    assert "kubectl config get-contexts" in error


@pytest.mark.parametrize("words", [[], ["logs"], ["top", "--interval", "0"], ["statis"]])
def test_bad_usage(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage: kubectl specdecode" in capsys.readouterr().err


async def test_a_refusal_between_two_frames_is_shown_and_not_the_end():
    answers = iter([Text("one"), PluginError("gone"), Text("two")])

    async def draw():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    frames = _frames(draw, 0.0)
    assert isinstance(frames, AsyncGenerator)
    assert [str(await anext(frames)) for _ in range(3)] == ["one", "gone", "two"]
    await frames.aclose()


def test_a_pipe_gets_rows_without_padding(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    table = Table.grid()
    table.add_row("a", "long " * 40)
    table.add_row("b", "short")
    _console().print(table)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].endswith("short")
    assert not any(line.endswith(" ") for line in lines)


def commands(parser, words=()):
    """Commands with their positional arguments, as docs write them."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, each in action.choices.items():
                yield from commands(each, (*words, name))
            return
    positional = [each for each in parser._actions if not each.option_strings]
    shown = [f"[{each.metavar}]" if each.nargs == "?" else each.metavar for each in positional]
    yield " ".join([*words, *shown])


def test_the_docs_list_every_command():
    text = (Path(__file__).resolve().parents[3] / "docs" / "plugin.md").read_text()
    listed = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert sorted(listed) == sorted(commands(_parser()))
