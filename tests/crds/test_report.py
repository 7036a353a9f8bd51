"""The termination message: readable by another release, and never too long."""

import json

import pytest

from specdecode_api.report import (
    MAX_BYTES,
    MODEL_REASONS,
    ModelReport,
    ModelRole,
    ModelState,
    TerminationMessage,
    TerminationReason,
)

COMMIT = "0" * 40


def test_words_are_read_as_they_were_written():
    model = ModelReport(
        role=ModelRole.DRAFT, uri="hf://a/b", state=ModelState.READY, revision=COMMIT, bytes_done=7
    )
    words = TerminationMessage(reason=TerminationReason.FETCHED, message="done", models=(model,))
    assert TerminationMessage.decode(words.encode().decode()) == words


@pytest.mark.parametrize("letter", ["x", "ü", "\U0001f600", '"'])
def test_long_words_fit_and_keep_beginning_and_end(letter):
    message = f"begin {letter * 5000} end"
    encoded = TerminationMessage(reason=TerminationReason.OUT_OF_SPACE, message=message).encode()
    assert len(encoded) <= MAX_BYTES
    read = TerminationMessage.decode(encoded.decode())
    assert read is not None
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
    assert TerminationMessage.decode(text) is None


def test_what_a_later_release_adds_is_ignored():
    text = json.dumps({"reason": "SolarFlare", "message": "x", "more": 1})
    assert TerminationMessage.decode(text) == TerminationMessage(reason="SolarFlare", message="x")


def test_reasons_are_distinguished_by_their_subject():
    about_engine = {
        TerminationReason.NOT_ENOUGH_MEMORY,
        TerminationReason.CANNOT_SERVE,
        TerminationReason.DRIVER_TOO_OLD,
        TerminationReason.DEVICE_FAILED,
        TerminationReason.STEP_TIMED_OUT,
        TerminationReason.BOOT_FILE_INVALID,
        TerminationReason.API_KEYS_MISSING,
        TerminationReason.ENGINE_FAILED,
        TerminationReason.FETCHED,
    }
    assert MODEL_REASONS.isdisjoint(about_engine)
    assert set(TerminationReason) == MODEL_REASONS | about_engine
