"""The command `convert` of both programs."""

import io

import pytest
import yaml

from specdecode_operator.__main__ import main as operator
from specdecode_operator.plugin.__main__ import main as plugin

LINE = "vllm serve org/m --port 80"


@pytest.mark.parametrize("program", [operator, plugin])
def test_the_resource_and_the_report_have_streams_of_their_own(program, capsys):
    assert program(["convert", LINE, "--name", "chat", "--runtime", "Specdecode"]) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out)["metadata"] == {"name": "chat"}
    assert printed.err == "dropped --port 80: the operator sets it\n"


@pytest.mark.parametrize("program", [operator, plugin])
def test_a_command_line_is_read_from_a_file_or_a_pipe(program, capsys, tmp_path, monkeypatch):
    file = tmp_path / "start.sh"
    file.write_text(f"#!/bin/sh\nexec {LINE}\n")
    assert program(["convert", "-f", str(file)]) == 0
    from_file = capsys.readouterr()
    monkeypatch.setattr("sys.stdin", io.StringIO(LINE))
    assert program(["convert", "-"]) == 0
    assert capsys.readouterr() == from_file


@pytest.mark.parametrize(("program", "code"), [(operator, 2), (plugin, 1)])
def test_errors_are_on_standard_error_alone(program, code, capsys):
    assert program(["convert", "vllm serve"]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "no model is named: write it after vllm serve" in printed.err


@pytest.mark.parametrize(("program", "code"), [(operator, 2), (plugin, 1)])
def test_a_file_that_is_not_there_is_named(program, code, capsys, tmp_path):
    path = str(tmp_path / "absent.sh")
    assert program(["convert", "--file", path]) == code
    assert f"cannot read {path}: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["a", "-f", "b"], ["vllm", "serve", "canary-key"]])
def test_one_source_is_needed(words, capsys):
    with pytest.raises(SystemExit) as ended:
        plugin(["convert", *words])
    assert ended.value.code == 2
    assert "canary" not in capsys.readouterr().err
