"""Any split of a text gives the same message as the whole text, and the work is linear."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_engine.serve.parsers.buffer import TextBuffer
from specdecode_engine.serve.parsers.tool_formats import TOOL_FORMATS
from tests.engine.serve.parsers.samples import CASES, FIXTURES, cut, make_parser, parse

NAMES = sorted(FIXTURES)
_GARBAGE = [
    "{", "}", "[", "]", "(", ")", '"', "'", "\\", ",", ":", "=", ";", "<", "|", ">", " ", "\n",
    "get_weather", "now", "search", '{"name": "now"', '"arguments": ', '"parameters": ', "1", "é",
    "city", "```json", "```", "true", "None", r"\u00e9", r"\x", "name", "to=functions.now",
]  # fmt: skip
TEXTS = {name: [case["text"] for other, case in CASES if other == name] for name in NAMES}
FRAGMENTS = {name: [*_GARBAGE, *TOOL_FORMATS[name].special_tokens, *TEXTS[name]] for name in NAMES}


def _mutated(name: str) -> st.SearchStrategy[str]:
    """Texts of a format that are whole, cut short, or damaged, and garbage of its fragments."""
    whole = st.sampled_from(TEXTS[name])
    short = st.builds(lambda text, end: text[: end % (len(text) + 1)], whole, st.integers(0))
    damaged = st.builds(
        lambda text, at, put: text[: at % (len(text) + 1)] + put + text[at % (len(text) + 1) :],
        whole,
        st.integers(0),
        st.sampled_from(FRAGMENTS[name]),
    )
    garbage = st.lists(st.sampled_from(FRAGMENTS[name]), max_size=12).map("".join)
    return st.one_of(whole, short, damaged, garbage, st.tuples(garbage, damaged).map("".join))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_any_split_of_a_text_gives_the_same_message(name, data) -> None:
    text = data.draw(_mutated(name))
    positions = data.draw(st.lists(st.integers(0, 10_000), max_size=20))
    whole = parse(name, [text])
    assert parse(name, cut(text, positions)) == whole
    assert parse(name, text) == whole


@pytest.mark.parametrize("name", NAMES)
def test_no_text_is_lost_unless_it_is_markup(name) -> None:
    """Plain text passes unchanged, with the white space around it."""
    text = "  Two lines:\n\n 1 < 2 and [3] {4}\t \n"
    assert parse(name, [text]).content == text
    assert parse(name, text).content == text


class CountingBuffer(TextBuffer):
    """Counts the calls, and the most characters that were held between two pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.most_held = 0

    def push(self, piece: str) -> None:
        self.most_held = max(self.most_held, len(self))
        super().push(piece)

    def take(self, count: int) -> str:
        self.calls += 1
        return super().take(count)

    def peek(self) -> str:
        self.calls += 1
        return super().peek()


def _long_texts(name: str) -> list[str]:
    """Texts of about 4 000 characters: repeated samples, one long call, unfinished markup."""
    rng = random.Random(name)
    texts = TEXTS[name]
    repeated = "".join(rng.choice(texts) for _ in range(4_000 // 60))
    begin = max(texts, key=len).partition("Paris")[0]
    fragments = FRAGMENTS[name]
    garbage = "".join(rng.choice(fragments) for _ in range(400))
    return [repeated, begin + "x" * 4_000, garbage, begin + '"' * 4_000, begin + "[" * 4_000]


@pytest.mark.parametrize("name", NAMES)
def test_work_is_linear_in_the_length_of_the_text(name) -> None:
    """Calls per character are bounded, and so is what a call can look at: the text held back."""
    for text in _long_texts(name):
        parser = make_parser(name)
        parser.buffer = counting = CountingBuffer()
        for char in text:
            parser.push(char)
        parser.flush()
        assert counting.most_held <= 64
        assert counting.calls <= 12 * len(text) + 100


@pytest.mark.parametrize("name", NAMES)
def test_a_long_text_in_one_piece_takes_no_more_calls_than_in_many(name) -> None:
    for text in _long_texts(name):
        parser = make_parser(name)
        parser.buffer = counting = CountingBuffer()
        parser.push(text)
        parser.flush()
        assert counting.calls <= 12 * len(text) + 100
