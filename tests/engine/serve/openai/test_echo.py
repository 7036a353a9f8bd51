"""POST /v1/completions with `echo` and `logprobs`: the prompt is scored before the answer."""

import math
import threading

import openai
import pytest

from specdecode_engine.batch.request import TokenLogprobs
from specdecode_engine.serve.openai.completions import CompletionFormatter
from specdecode_engine.serve.openai.output_processor import OutputProcessor
from specdecode_engine.serve.openai.streaming import MAX_SCORED_ON_LOOP
from specdecode_engine.serve.text.tokenizer import Vocabulary

PROMPT = "the quick brown fox jumps over the größer lazy dog"


@pytest.fixture
def client(server):
    # A prompt's first token has no log-probability, which the client's strict types refuse.
    return server.connect(is_strict=False)


def score(client, **fields):
    options = {"model": "echo", "prompt": PROMPT, "temperature": 0, "max_tokens": 8}
    return client.completions.create(**(options | {"echo": True, "logprobs": 2} | fields))


def join(chunks):
    """Put the lists of a stream's chunks together."""
    parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices]
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {name: [item for part in parts for item in getattr(part, name)] for name in names}


def test_the_prompt_and_the_answer_have_one_entry_per_token(client, server):
    count = len(server.service.text.encode(PROMPT))
    choice = score(client, extra_body={"ignore_eos": True}).choices[0]
    plain = score(client, echo=False, extra_body={"ignore_eos": True}).choices[0]
    assert choice.text == PROMPT + plain.text
    logprobs = choice.logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == count + 8
    assert (logprobs.token_logprobs[0], logprobs.top_logprobs[0]) == (None, None)
    assert all(value <= 0 and math.isfinite(value) for value in logprobs.token_logprobs[1:])
    assert all(2 <= len(top) <= 3 for top in logprobs.top_logprobs[1:])
    for token, top in zip(logprobs.tokens[1:], logprobs.top_logprobs[1:], strict=True):
        assert token in top
    assert logprobs.tokens[count:] == plain.logprobs.tokens
    assert logprobs.token_logprobs[count:] == plain.logprobs.token_logprobs
    offsets = [offset + len(PROMPT) for offset in plain.logprobs.text_offset]
    assert logprobs.text_offset[count:] == offsets
    assert logprobs.text_offset[0] == 0
    for token, offset in zip(logprobs.tokens[:count], logprobs.text_offset, strict=False):
        assert "\ufffd" in token or choice.text[offset:].startswith(token)


def test_an_answer_of_no_tokens_is_the_prompt_scored(client, server):
    count = len(server.service.text.encode(PROMPT))
    answer = score(client, max_tokens=0)
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == (PROMPT, "length")
    assert answer.usage.completion_tokens == 0
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == count
    assert (
        choice.logprobs.token_logprobs == score(client).choices[0].logprobs.token_logprobs[:count]
    )
    silent = score(client, max_tokens=0, logprobs=None).choices[0]
    assert (silent.text, silent.logprobs, silent.finish_reason) == (PROMPT, None, "length")


@pytest.mark.parametrize("max_tokens", [0, 8])
def test_a_stream_begins_with_the_whole_prompt(client, server, max_tokens):
    count = len(server.service.text.encode(PROMPT))
    whole = score(client, max_tokens=max_tokens)
    usage = {"include_usage": True}
    chunks = list(score(client, max_tokens=max_tokens, stream=True, stream_options=usage))
    first = chunks[0].choices[0]
    assert (first.text, first.finish_reason) == (PROMPT, None)
    assert len(first.logprobs.tokens) == count
    assert join(chunks) == whole.choices[0].logprobs.model_dump()
    texts = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert texts == whole.choices[0].text
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage


def test_each_of_n_choices_has_it(client, server):
    count = len(server.service.text.encode(PROMPT))
    one = score(client, max_tokens=0).choices[0].logprobs
    choices = score(client, n=2, temperature=1, seed=3).choices
    assert [choice.index for choice in choices] == [0, 1]
    for choice in choices:
        assert choice.text.startswith(PROMPT)
        assert choice.logprobs.token_logprobs[:count] == one.token_logprobs
    chunks = list(score(client, n=2, temperature=1, seed=3, stream=True))
    for index in (0, 1):
        mine = [chunk for chunk in chunks if chunk.choices[0].index == index]
        assert mine[0].choices[0].text == PROMPT
        assert join(mine) == choices[index].logprobs.model_dump()


def test_a_batch_of_prompts_is_scored_prompt_by_prompt(client, server):
    texts = [PROMPT, "the fox", "a"]
    ids = [list(server.service.text.encode(text)) for text in texts]
    for prompts in (texts, ids):
        answer = score(client, prompt=prompts, max_tokens=0)
        assert [choice.text for choice in answer.choices] == texts
        assert answer.usage.prompt_tokens == sum(map(len, ids))
        for text, choice in zip(texts, answer.choices, strict=True):
            assert choice.logprobs == score(client, prompt=text, max_tokens=0).choices[0].logprobs


def test_no_likeliest_tokens_are_returned_where_none_is_requested(client):
    tops = score(client, logprobs=0, max_tokens=0).choices[0].logprobs.top_logprobs
    assert tops[0] is None
    assert all(len(top) == 1 for top in tops[1:])


def test_a_prompt_of_the_whole_context_may_be_scored_but_not_continued(client, server):
    ids = [5] * server.service.engine.context_length
    assert len(score(client, prompt=ids, max_tokens=0).choices[0].logprobs.tokens) == len(ids)
    with pytest.raises(openai.BadRequestError) as caught:
        score(client, prompt=ids, max_tokens=1)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match=f"at most {len(ids)} leave room for 0"):
        score(client, prompt=[*ids, 5], max_tokens=0)


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_without_an_echo_are_refused(client, stream):
    with pytest.raises(openai.BadRequestError, match="echo: true"):
        score(client, echo=False, max_tokens=0, stream=stream)


def test_a_stop_in_the_prompt_ends_nothing(client):
    plain = score(client, echo=False, stop="fox").choices[0].text
    assert score(client, stop="fox").choices[0].text == PROMPT + plain


def test_offsets_leave_out_the_space_that_sentencepiece_writes_first(sentencepiece):
    ids = tuple(sentencepiece.token_to_id(piece) for piece in ("<s>", "▁the", "▁fox", ",", "b"))
    processor = OutputProcessor(2, Vocabulary(sentencepiece), (), "the fox,b", ids)
    processor.add_echo(tuple(TokenLogprobs(token_id, -1.0, ()) for token_id in ids[1:]))
    assert (processor.index, processor.text, processor.finish_reason) == (2, "the fox,b", None)
    assert [token.text_offset for token in processor.scored] == [0, 0, 3, 7, 8]
    assert [token.logprobs is None for token in processor.scored] == [True] + 4 * [False]


def test_a_long_prompt_is_scored_and_formatted_outside_the_event_loop(echo_server, monkeypatch):
    add_echo, choice, seen = OutputProcessor.add_echo, CompletionFormatter.choice, []

    def noted_echo(processor, *logprobs):
        add_echo(processor, *logprobs)
        seen.append((len(processor.scored), threading.current_thread()))

    def noted_choice(formatter, new):
        if new.scored:
            seen.append((len(new.scored), threading.current_thread()))
        return choice(formatter, new)

    monkeypatch.setattr(OutputProcessor, "add_echo", noted_echo)
    monkeypatch.setattr(CompletionFormatter, "choice", noted_choice)
    client = echo_server.connect(is_strict=False)
    for prompt in ("a", PROMPT * 4):
        list(score(client, prompt=prompt, max_tokens=0, stream=True))
    short, long = [1] * 2, [len(echo_server.service.text.encode(PROMPT * 4))] * 2
    assert [count for count, _ in seen] == [*short, *long]
    assert min(long) > MAX_SCORED_ON_LOOP
    loop = echo_server.thread
    assert [thread is loop for _, thread in seen] == [True, True, False, False]
