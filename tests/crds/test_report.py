"""Last words: written by one release, read by another, and never too long."""

import json

import pytest

from specdecode_api.report import (
    MAX_BYTES,
    MODEL_REASONS,
    LastWords,
    ModelReport,
    ModelState,
    Reason,
    Role,
)

COMMIT = "0" * 40


def test_words_are_read_as_they_were_written():
    model = ModelReport(
        role=Role.DRAFT, uri="hf://a/b", state=ModelState.READY, revision=COMMIT, bytes_done=7
    )
    words = LastWords(reason=Reason.FETCHED, message="done", models=(model,))
    assert LastWords.decode(words.encode().decode()) == words


@pytest.mark.parametrize("letter", ["x", "ü", "\U0001f600", '"'])
def test_long_words_fit_and_keep_beginning_and_end(letter):
    message = f"begin {letter * 5000} end"
    encoded = LastWords(reason=Reason.OUT_OF_SPACE, message=message).encode()
    assert len(encoded) <= MAX_BYTES
    read = LastWords.decode(encoded.decode())
    assert read.message.startswith("begin ")
    assert read.message.endswith(" end")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Traceback (most recent call last)",
        "{",
        "[]",
        '{"message": "x"}',
        '{"reason": "no way"}',
    ],
)
def test_anything_else_is_no_last_word(text):
    assert LastWords.decode(text) is None


def test_what_a_later_release_adds_is_ignored():
    text = json.dumps({"reason": "SolarFlare", "message": "x", "more": 1})
    assert LastWords.decode(text) == LastWords(reason="SolarFlare", message="x")


def test_reasons_are_told_apart_by_what_they_are_about():
    about_engine = {
        Reason.NOT_ENOUGH_MEMORY,
        Reason.CANNOT_SERVE,
        Reason.BOOT_FILE_INVALID,
        Reason.API_KEYS_MISSING,
        Reason.ENGINE_FAILED,
        Reason.FETCHED,
    }
    assert MODEL_REASONS.isdisjoint(about_engine)
    assert set(Reason) == MODEL_REASONS | about_engine
