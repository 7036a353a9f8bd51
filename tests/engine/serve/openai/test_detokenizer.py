"""Incremental text equals the tokenizer's own, and no piece ends inside a character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdecode_engine.serve.text.detokenizer import Detokenizer
from specdecode_engine.serve.text.tokenizer import Vocabulary

REPLACEMENT = "\ufffd"
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=REPLACEMENT))


def pieces(tokenizer, ids):
    detokenizer = Detokenizer(Vocabulary(tokenizer))
    return [*map(detokenizer.push, ids), detokenizer.flush()]


@given(ids=st.lists(st.integers(0, 330)))
def test_byte_level_equals_the_full_decode_of_any_ids(byte_level, ids):
    assert "".join(pieces(byte_level, ids)) == byte_level.decode(ids, skip_special_tokens=True)


@given(ids=st.lists(st.integers(0, 330)), cut=st.integers(0, 20))
def test_tokens_of_one_step_have_the_text_of_single_tokens(byte_level, ids, cut):
    detokenizer = Detokenizer(Vocabulary(byte_level))
    together = [detokenizer.push(*ids[:cut]), detokenizer.push(*ids[cut:])]
    parts = pieces(byte_level, ids)[:-1]
    assert together == ["".join(parts[:cut]), "".join(parts[cut:])]


@given(text=TEXTS)
def test_byte_level_never_shows_half_a_character(byte_level, text):
    parts = pieces(byte_level, byte_level.encode(text).ids)
    assert "".join(parts) == text
    assert not any(REPLACEMENT in part for part in parts)


def in_context(tokenizer, anchor, ids):
    """The text that ids have after other text, where no leading space is stripped."""
    start = tokenizer.token_to_id(anchor)
    return tokenizer.decode([start, *ids])[len(tokenizer.decode([start])) :]


@given(text=TEXTS)
def test_sentencepiece_equals_the_full_decode_of_any_text(sentencepiece, text):
    ids = sentencepiece.encode(text.replace(" ", "▁"), add_special_tokens=False).ids
    parts = pieces(sentencepiece, ids)
    assert "".join(parts) == in_context(sentencepiece, "a", ids)
    assert not any(REPLACEMENT in part for part in parts)


@given(ids=st.lists(st.integers(0, 275)))
def test_sentencepiece_loses_no_valid_text_to_invalid_bytes(sentencepiece, ids):
    text = "".join(pieces(sentencepiece, ids))
    whole = in_context(sentencepiece, "a", ids)
    if REPLACEMENT not in whole:
        assert text == whole
    # The tokenizer gives up a whole run of bytes for one bad byte; we give up the bad byte.
    rest = iter(text)
    assert all(char in rest for char in whole if char != REPLACEMENT)


@given(ids=st.lists(st.integers(0, 12)))
def test_metaspace_equals_the_full_decode_of_any_ids(metaspace, ids):
    assert "".join(pieces(metaspace, ids)) == in_context(metaspace, "a", ids)


def test_a_word_keeps_the_space_before_it(sentencepiece):
    the = sentencepiece.token_to_id("▁the")
    assert pieces(sentencepiece, [the, the]) == [" the", " the", ""]


def test_an_unfinished_character_shows_at_the_end_only(byte_level):
    ids = [byte_level.token_to_id(char) for char in "ðŁĺ"]  # three of the four bytes of 😀
    assert pieces(byte_level, ids) == ["", "", "", REPLACEMENT]


@pytest.mark.parametrize("token", ["<|end|>", "<|turn|>"])
def test_special_tokens_have_a_spelling_but_no_text(byte_level, token):
    vocabulary = Vocabulary(byte_level)
    token_id = byte_level.token_to_id(token)
    assert vocabulary.text_bytes(token_id) == b""
    assert vocabulary.spelling(token_id).decode() == token


def test_ids_beyond_the_tokenizer_have_no_text(byte_level):
    assert Vocabulary(byte_level).spelling(100_000) == b""
