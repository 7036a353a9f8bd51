"""Events that only add text are prepared: byte for byte what formatting a chunk gives."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdecode_engine.batch.request import FinishReason, Output, TokenLogprobs
from specdecode_engine.serve.openai.chat_formatter import ChatFormatter
from specdecode_engine.serve.openai.chat_protocol import ChatBody
from specdecode_engine.serve.openai.completions import CompletionFormatter
from specdecode_engine.serve.openai.formatting import ChoiceFormatter, ResponseHead, encode_event
from specdecode_engine.serve.openai.output_processor import OutputProcessor
from specdecode_engine.serve.openai.protocol import CompletionBody
from specdecode_engine.serve.parsers.message import ContentDelta, ReasoningDelta, ToolCallDelta
from specdecode_engine.serve.text.tokenizer import Vocabulary

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
MESSAGES = [{"role": "user", "content": "hi"}]


def chat(vocabulary: Vocabulary, **fields: Any) -> ChatFormatter:
    body = ChatBody.model_validate({"messages": MESSAGES, "n": 4, **fields})
    return ChatFormatter(body, ResponseHead('r"1', 7, 'a "model" é'), vocabulary)


def completion(vocabulary: Vocabulary, **fields: Any) -> CompletionFormatter:
    body = CompletionBody.model_validate({"prompt": "hi", "n": 4, **fields})
    return CompletionFormatter(body, ResponseHead('r"1', 7, 'a "model" é'), vocabulary)


def formatted(formatter: ChoiceFormatter, choice: OutputProcessor) -> bytes:
    return b"".join(map(encode_event, formatter.events(choice)))


@pytest.fixture(scope="module")
def vocabulary(byte_level):
    return Vocabulary(byte_level)


@pytest.mark.parametrize("fields", [{}, {"stream": True}, STREAMED])
@pytest.mark.parametrize("make", [chat, completion])
@given(texts=st.lists(TEXTS, min_size=1, max_size=3), index=st.integers(0, 3))
def test_a_text_event_is_the_formatted_chunk(vocabulary, make, fields, texts, index):
    formatter, choice = make(vocabulary, **fields), OutputProcessor(index, vocabulary)
    for text in texts:
        choice.deltas = [ContentDelta(text)]
        assert formatter.text_event(choice) == formatted(formatter, choice)
        choice.clear()


@pytest.mark.parametrize("delta", [ReasoningDelta("a"), ToolCallDelta(0, "f", "{}")])
def test_other_parts_of_a_message_have_no_text_event(vocabulary, delta):
    choice = OutputProcessor(0, vocabulary)
    for deltas in ([], [delta], [ContentDelta("a"), delta]):
        choice.deltas = deltas
        assert chat(vocabulary).text_event(choice) == b""


@pytest.mark.parametrize("make", [chat, completion])
def test_the_end_of_a_choice_has_no_text_event(vocabulary, make):
    choice = OutputProcessor(0, vocabulary)
    choice.push(Output("a", (70, 71), finish_reason=FinishReason.LENGTH))
    assert choice.text
    assert make(vocabulary).text_event(choice) == b""


@pytest.mark.parametrize(("make", "wanted"), [(chat, True), (completion, 1)])
def test_log_probabilities_have_no_text_event(vocabulary, make, wanted):
    choice = OutputProcessor(0, vocabulary)
    formatter = make(vocabulary, logprobs=wanted)
    choice.push(Output("a", (70,), logprobs=(TokenLogprobs(70, -0.5, ()),)))
    assert formatter.text_event(choice) == b""
    choice.scored = []  # text that was held back comes without its tokens
    assert formatter.text_event(choice) == b""
