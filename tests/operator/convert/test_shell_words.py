"""Words of a command line: those of the shell, or an error with the place of a character."""

import contextlib
import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_operator.convert.errors import ConvertError
from specdecode_operator.convert.shell_words import MAX_CHARACTERS, split_command


def words_of_a_shell(text):
    """The words that /bin/sh gives to a program."""
    script = f"printf '%s\\0' {text}"
    found = subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=True)
    return found.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize(
    "text",
    [
        "a b  c",
        "a 'b c' \"d e\"",
        "a'b'\"c\"d",
        "'' \"\" a",
        "a\\ b \\\\ \\'",
        "\"a\\\"b\" \"a\\\\b\" \"a\\$b\" \"a\\nb\"",
        "a \\\n  b",
        "\"a \\\nb\"",
        "'a\nb'",
        "a='b c'",
        "'{\"a\": [1, 2]}' '*' '$a' '~' '`'",
        "a#b '#' \\#",
        "$ a$ \"5$\"",
        "] } = : , ! % ^ @ + a~b",
    ],
)  # fmt: skip
def test_words_are_those_of_the_shell(text):
    assert split_command(text) == words_of_a_shell(text)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126))))
def test_quoted_words_are_read_back(words):
    text = shlex.join(words)
    if "{{" not in text and "{%" not in text:
        assert split_command(text) == words


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("ab '\"\\\n#$;&|<>(){}[]*?~`=-é")))
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(ConvertError):
        assert all(isinstance(word, str) for word in split_command(text))


def test_comments_and_carriage_returns_are_left_out():
    text = "#!/bin/sh\r\n# start\r\nvllm serve \\\r\n  org/m # the model\r\n# end\r\n"
    assert split_command(text) == ["vllm", "serve", "org/m"]


@pytest.mark.parametrize("text", ["a \x1b[0m", "a\u00a0b", "a\x00"])
def test_what_is_not_printable_is_refused(text):
    with pytest.raises(ConvertError, match="neither printable nor a blank"):
        split_command(text)


def test_a_very_long_text_is_refused():
    with pytest.raises(ConvertError, match="shorten it"):
        split_command("a" * (MAX_CHARACTERS + 1))
