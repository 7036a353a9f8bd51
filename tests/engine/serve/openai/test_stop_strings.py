"""Stop strings: found wherever they fall, and independent of how many tokens a step adds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdecode_engine.batch.request import FinishReason, Output
from specdecode_engine.serve.openai.output_processor import OutputProcessor
from specdecode_engine.serve.parsers.formats import MessageFormats
from specdecode_engine.serve.parsers.message import ParserContext
from specdecode_engine.serve.parsers.reasoning import REASONING_TAGS
from specdecode_engine.serve.parsers.tool_formats import TOOL_FORMATS
from specdecode_engine.serve.text.detokenizer import StopStringScanner
from specdecode_engine.serve.text.tokenizer import Vocabulary

STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3).map(tuple)
PIECES = st.lists(st.text("ab", max_size=3), max_size=12)


def scan(stops, pieces):
    """Return what is released after each piece, and whether a stop ended it."""
    scanner, shown = StopStringScanner(stops), [""]
    for piece in pieces:
        shown.append(shown[-1] + scanner.push(piece))
        if scanner.is_stopped:
            return shown, True
    return [*shown, shown[-1] + scanner.flush()], False


def expected(stops, pieces):
    """Return the text by looking at its end after every character."""
    text = "".join(pieces)
    for end in range(1, len(text) + 1):
        sizes = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if sizes:
            return text[: end - max(sizes)], True
    return text, False


@given(stops=STOPS, pieces=PIECES)
def test_scanning_pieces_equals_searching_the_whole_text(stops, pieces):
    shown, is_stopped = scan(stops, pieces)
    assert (shown[-1], is_stopped) == expected(stops, pieces)


@given(stops=STOPS, pieces=PIECES)
def test_nothing_is_held_back_that_cannot_become_a_stop(stops, pieces):
    scanner, text = StopStringScanner(stops), ""
    shown = ""
    for piece in pieces:
        released = scanner.push(piece)
        if scanner.is_stopped:
            return
        text, shown = text + piece, shown + released
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)


class CountedText(str):
    """A stop string that counts how often a character of it is read."""

    reads = 0

    def __getitem__(self, key):
        self.reads += 1
        return super().__getitem__(key)


@pytest.mark.parametrize(
    "stop", ["a" * 1023 + "b", "b" + "a" * 1023, "a" * 1022 + "ba", "ab" * 512, "a" * 511 + "b" * 9]
)
@pytest.mark.parametrize("text", ["a" * 4000, ("a" * 1022 + "c") * 4, "ab" * 500 + "ac" * 500])
def test_the_work_of_a_stop_is_linear_in_the_text(stop, text):
    held = "a" * 1023 + "d"  # another stop string, which holds much of the text back
    counted = CountedText(stop)
    _, is_stopped = scan((held, counted), text)
    assert is_stopped == (stop in text)
    assert counted.reads <= 6 * len(text)


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=9), max_size=3).map(tuple),
    pieces=st.lists(st.text("ab", max_size=5), max_size=12),
    rest=PIECES,
)
def test_nothing_before_a_flush_is_part_of_a_stop(stops, pieces, rest):
    scanner, released = StopStringScanner(stops), ""
    for piece in pieces:
        released += scanner.push(piece)
        if scanner.is_stopped:
            return
    assert released + scanner.flush() == "".join(pieces)
    after = [scanner.push(piece) for piece in rest if not scanner.is_stopped]
    shown = "".join(after) + ("" if scanner.is_stopped else scanner.flush())
    assert (shown, scanner.is_stopped) == expected(stops, rest)


def outputs(ids, sizes, end):
    """Split ids into outputs of the given sizes; the last one has the finish reason."""
    start = 0
    steps: list[list[int]] = []
    while start < len(ids):
        size = sizes[len(steps) % len(sizes)]
        steps.append(ids[start : start + size])
        start += size
    return [
        Output("r", tuple(part), finish_reason=end if index == len(steps) - 1 else None)
        for index, part in enumerate(steps)
    ]


def read(vocabulary, stops, steps):
    processor, text = OutputProcessor(0, vocabulary, stops), ""
    for output in steps:
        processor.push(output)
        text += processor.text
        processor.clear()
        if processor.finish_reason is not None:
            break
    return text, processor.finish_reason, processor.completion_tokens


@given(
    text=st.text("the STOP ö😀", min_size=1, max_size=40),
    stops=st.lists(st.text("STOPtö😀 ", min_size=1, max_size=3), max_size=3).map(tuple),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
)
def test_text_end_and_count_do_not_depend_on_the_steps(byte_level, text, stops, sizes):
    vocabulary = Vocabulary(byte_level)
    ids = byte_level.encode(text).ids
    one_by_one = read(vocabulary, stops, outputs(ids, [1], FinishReason.LENGTH))
    dealt = read(vocabulary, stops, outputs(ids, sizes, FinishReason.LENGTH))
    assert dealt == one_by_one


PARSERS = {
    "reasoning": MessageFormats(REASONING_TAGS["qwen3"]),
    "calls": MessageFormats(None, TOOL_FORMATS["hermes"]),
    "both": MessageFormats(REASONING_TAGS["qwen3"], TOOL_FORMATS["hermes"]),
    "pythonic": MessageFormats(None, TOOL_FORMATS["pythonic"]),
}


@pytest.mark.parametrize("formats", PARSERS.values(), ids=PARSERS)
@given(
    text=st.text("a <\n😀", min_size=1, max_size=30),
    stops=st.lists(st.sampled_from(("\n", " ", "a", "<", "😀", "\na", " <a")), max_size=2),
    min_tokens=st.integers(0, 12),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
)
def test_parsers_that_hold_text_back_change_no_stop(
    byte_level, formats, text, stops, min_tokens, sizes
):
    """What a parser holds back of the first `min_tokens` tokens is not searched later."""
    vocabulary = Vocabulary(byte_level)
    steps = outputs(byte_level.encode(text).ids, sizes, FinishReason.LENGTH)
    found = []
    for parser in (None, formats.make_parser(ParserContext(parameters={"f": {}}))):
        processor = OutputProcessor(
            0, vocabulary, tuple(stops), parser=parser, min_tokens=min_tokens
        )
        for output in steps:
            processor.push(output)
            if processor.finish_reason is not None:
                break
        found.append((processor.text, processor.finish_reason, processor.completion_tokens))
    (text, reason, count), (parsed_text, parsed_reason, parsed_count) = found
    assert (parsed_text, parsed_reason) == (text, reason)
    assert parsed_count >= count, "a parser that holds text back shows the stop later"


def test_the_token_that_completes_the_stop_is_the_last_one_counted(byte_level):
    vocabulary = Vocabulary(byte_level)
    ids = byte_level.encode("the fox STOP the fox").ids
    text, reason, count = read(vocabulary, ("STOP",), [Output("r", tuple(ids))])
    assert text == "the fox "
    assert reason is FinishReason.STOP
    assert "STOP" in byte_level.decode(ids[:count])
    assert "STOP" not in byte_level.decode(ids[: count - 1])


def test_a_stop_on_the_last_allowed_token_is_a_stop(byte_level):
    ids = byte_level.encode("fox STOP").ids
    steps = [Output("r", tuple(ids), finish_reason=FinishReason.LENGTH)]
    assert read(Vocabulary(byte_level), ("STOP",), steps)[1] is FinishReason.STOP


def test_a_stop_token_is_counted_but_not_shown(byte_level):
    ids = [*byte_level.encode("fox").ids, 0]
    end = Output("r", tuple(ids), finish_reason=FinishReason.STOP, stop_token_id=0)
    assert read(Vocabulary(byte_level), (), [end]) == ("fox", FinishReason.STOP, len(ids))


def test_an_empty_stop_is_our_own_bug():
    with pytest.raises(AssertionError):
        StopStringScanner(("",))
