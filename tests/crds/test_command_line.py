"""Command lines of all programs refuse abbreviations."""

import ast
import subprocess
from pathlib import Path

import pytest

from specdecode_api.command_line import ArgumentParser

ROOT = Path(__file__).resolve().parents[2]


def parser() -> ArgumentParser:
    parser = ArgumentParser(prog="program")
    parser.add_argument("--token-file")
    parser.add_argument("--token-count", type=int)
    parser.add_argument("--share", type=float)
    parser.add_argument("--level", choices=["low", "high"])
    parser.add_argument("--fast", action="store_true")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("run").add_argument("--namespace")
    return parser


def test_a_mistyped_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    plain = ArgumentParser(prog="program")
    plain.add_argument("--port")
    with pytest.raises(SystemExit, match="2"):
        plain.parse_args(["chek", "secret", "--port", "1"])
    shown = capsys.readouterr().err
    assert "unrecognized arguments: chek, words that belong to no flag; see --help" in shown
    assert "secret" not in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--token", "x"], "--token is an abbreviation: write --token-count or --token-file"),
        (["--token-c=3"], "--token-c is an abbreviation: write --token-count"),
        (["run", "--name", "x"], "--name is an abbreviation: write --namespace"),
        (["run", "--nothing=secret"], "unrecognized arguments: --nothing; see --help"),
        (["run", "-x", "secret"], "unrecognized arguments: -x, words that belong to no flag"),
        (["--token-count", "secret"], "argument --token-count: not a number: write a whole number"),
        (["--token-count", "1.5"], "argument --token-count: 1.5: write a whole number"),
        (["--share=secret"], "argument --share: not a number: write a number"),
        (["--level", "secret-0123456789abcdef"], "<23 characters>: use one of low, high"),
        (["--level", "hihg"], "invalid choice: 'hihg'"),
        (["--fast=secret"], "argument --fast: takes no value"),
    ],
)
def test_abbreviations_and_unknown_flags_are_named_without_values(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(words)
    shown = capsys.readouterr().err
    assert message in shown
    assert "secret" not in shown


def test_whole_flags_are_read() -> None:
    found = parser().parse_args(["--token-file", "a", "--token-count=3", "run", "--namespace", "b"])
    assert (found.token_file, found.token_count, found.namespace) == ("a", 3, "b")


def test_no_parser_of_the_repository_completes_flags() -> None:
    listed = subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True)
    found = []
    for path in listed.split():
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "argparse.ArgumentParser":
                set_to = {each.arg: ast.unparse(each.value) for each in node.keywords}
                if set_to.get("allow_abbrev") != "False":
                    found.append(f"{path}:{node.lineno}")
    assert found == []
