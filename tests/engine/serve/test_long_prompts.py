"""Prompts of megabytes: other requests continue, and what cannot fit is refused unread."""

import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers

from specdecode_engine.serve.errors import HttpError
from specdecode_engine.serve.text.detokenizer import Detokenizer
from specdecode_engine.serve.text.loading import load_text_model, longest_token_chars

TEXT = "the quick brown fox größer naïve 北京 😀 12345 and <|turn|> STOP\n"


load_once = cache(load_text_model)


RARELY, OFTEN = 1e3, 1e-6
"""Switch intervals: with the first, which no call outlasts, another thread runs only while a call
has released the interpreter; with the second, also wherever the interpreter could release it."""


def ticks_during(work: Callable[[], object], switch_s: float) -> int:
    """Return how often another thread ran meanwhile.

    The interval is set before the thread starts: a thread that already waits for the interpreter
    keeps the interval with which its wait began.
    """
    ticks, is_done, is_beating = [0], threading.Event(), threading.Event()

    def beat() -> None:
        while not is_done.is_set():
            ticks[0] += 1
            is_beating.set()
            time.sleep(0.001)  # long enough for the other thread to take the interpreter

    usual = sys.getswitchinterval()
    sys.setswitchinterval(switch_s)
    heart = threading.Thread(target=beat)
    heart.start()
    is_beating.wait()
    try:
        before = ticks[0]
        work()
        return ticks[0] - before
    finally:
        sys.setswitchinterval(usual)
        is_done.set()
        heart.join()


CONTEXT_LENGTH = 131_072


@pytest.fixture(scope="module")
def longest_prompt(model_folder: Path) -> str:
    """A text that fills a context of `CONTEXT_LENGTH` tokens, with its chat template."""
    model = load_once(model_folder)
    frame = len(model.encode(model.render_chat([{"role": "user", "content": ""}]), False))
    line = len(model.encode(TEXT))
    return TEXT * ((CONTEXT_LENGTH - frame) // line)


def test_other_threads_run_while_the_longest_prompt_is_encoded_and_decoded(
    model_folder: Path, longest_prompt: str
) -> None:
    """The tokenizer releases the interpreter for batches alone."""
    model = load_once(model_folder)
    messages = [{"role": "user", "content": longest_prompt}]
    rendered = model.render_chat(messages)
    ids = model.encode_prompt(rendered, "messages", CONTEXT_LENGTH, False)
    assert CONTEXT_LENGTH - 100 < len(ids) <= CONTEXT_LENGTH
    assert ticks_during(lambda: model.tokenizer.encode(rendered), RARELY) == 0
    for work in (
        lambda: model.encode_prompt(rendered, "messages", CONTEXT_LENGTH, False),
        lambda: model.decode(ids),
    ):
        assert ticks_during(work, RARELY) > 0


def test_other_threads_run_while_the_longest_prompt_is_detokenized(
    model_folder: Path, longest_prompt: str
) -> None:
    """No call does more than a token, so that the interpreter can switch between any two."""
    model = load_once(model_folder)
    ids = model.encode(longest_prompt, False)

    def detokenize() -> str:
        detokenizer = Detokenizer(model.vocabulary)
        return "".join(map(detokenizer.push, ids)) + detokenizer.flush()

    assert ticks_during(detokenize, OFTEN) > 5


def test_a_prompt_of_millions_of_tokens_is_refused_before_its_ids_are_copied(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter is held while ids are copied: of a prompt that is refused, none are."""
    model = load_once(model_folder)

    class Million:
        def __len__(self) -> int:
            return 1_000_000

        @property
        def ids(self) -> list[int]:
            raise AssertionError("the ids were copied")

    monkeypatch.setattr(type(model), "_encode", lambda *_: Million())
    with pytest.raises(HttpError, match="1000000 tokens; the model's context is 500000") as it:
        model.encode_prompt("x", "prompt", 500_000, True)
    assert it.value.code == "context_length_exceeded"
    with pytest.raises(AssertionError, match="were copied"):
        model.encode_prompt("x", "prompt", 1_000_000, True)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.text(), st.booleans())
def test_ids_are_those_of_a_single_encode(
    model_folder: Path, text: str, add_special_tokens: bool
) -> None:
    model = load_once(model_folder)
    for each in (text, TEXT + text):
        plain = model.tokenizer.encode(each, add_special_tokens=add_special_tokens)
        assert list(model.encode(each, add_special_tokens)) == plain.ids
        assert len(each) <= len(plain.ids) * (model.longest_token_chars or 0)
        assert model.decode(tuple(plain.ids)) == model.tokenizer.decode(plain.ids)


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_a_prompt_that_cannot_fit_is_refused_without_being_encoded(
    start_server, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(context_length=64)
    most = 64 * (server.service.text.longest_token_chars or 0)
    encoded: list[str] = []
    model = type(server.service.text)
    encode = model._encode

    def record(self, text, *rest, **named):
        encoded.append(text)
        return encode(self, text, *rest, **named)

    monkeypatch.setattr(model, "_encode", record)
    for length, code in ((most + 1, 400), (10, 200)):
        large = "a" * length
        field = "prompt"
        prompt: dict[str, object] = {"prompt": large}
        if path.startswith("chat"):
            field, prompt = "messages", {"messages": [{"role": "user", "content": large}]}
        answer = httpx.post(f"{server.url}/v1/{path}", json=prompt | {"max_tokens": 1}, timeout=30)
        assert answer.status_code == code
        if code == 400:
            error = answer.json()["error"]
            assert (error["code"], error["param"]) == ("context_length_exceeded", field)
            assert f"at most {most} " in error["message"]
            assert f"shorten {field}" in error["message"]
            assert not encoded
    assert len(encoded) == 1


def test_the_longest_token_bounds_only_where_no_text_is_removed(
    byte_level: Tokenizer, sentencepiece: Tokenizer, metaspace: Tokenizer
) -> None:
    longest = max(map(len, byte_level.get_vocab()))
    assert longest_token_chars(byte_level) == longest
    assert longest_token_chars(sentencepiece) == max(map(len, sentencepiece.get_vocab()))
    assert longest_token_chars(metaspace) is None  # unknown characters fuse to one token

    def changed(change: Callable[[Tokenizer], object]) -> Tokenizer:
        copy = Tokenizer.from_str(byte_level.to_str())
        change(copy)
        return copy

    def normalized(normalizer: normalizers.Normalizer) -> int | None:
        return longest_token_chars(changed(lambda it: setattr(it, "normalizer", normalizer)))

    assert normalized(normalizers.NFC()) == 4 * longest
    assert normalized(normalizers.Sequence([normalizers.NFD(), normalizers.NFC()])) == 4 * longest
    assert normalized(normalizers.Strip()) is None
    assert normalized(normalizers.Replace("  ", " ")) is None
    stripping = changed(lambda it: it.add_tokens([AddedToken("<mask>", lstrip=True)]))
    assert longest_token_chars(stripping) is None
