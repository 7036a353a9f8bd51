"""The speculation statistics that `usage` reports per call, on the real core."""

import pytest

PROMPT = "Count from one to five."
COUNTS = {"decode_steps", "num_drafts", "num_draft_tokens", "num_accepted_tokens"}
NAMES = COUNTS | {"num_accepted_tokens_per_pos", "accept_length"}


def ask(server, kind, **fields):
    """Call either API; return the usage of its answer."""
    client = server.connect(is_strict=False)
    options = {"model": "echo", "temperature": 0, "max_tokens": 24} | fields
    if kind == "chat":
        answer = client.chat.completions.create(
            messages=[{"role": "user", "content": PROMPT}], **options
        )
    else:
        answer = client.completions.create(prompt=PROMPT, **options)
    if fields.get("stream"):
        *_, answer = answer
    return answer.usage


@pytest.fixture(params=["chat", "completions"])
def kind(request):
    return request.param


def test_the_numbers_of_a_drafted_call_add_up(drafting_server, kind):
    usage = ask(drafting_server, kind, extra_body={"ignore_eos": True})
    stats = usage.specdecode
    assert set(stats) == NAMES
    assert stats["num_drafts"] == stats["decode_steps"]
    assert stats["num_draft_tokens"] == 3 * stats["num_drafts"]
    by_position = stats["num_accepted_tokens_per_pos"]
    assert sum(by_position) == stats["num_accepted_tokens"] > 0
    assert by_position == sorted(by_position, reverse=True)
    assert len(by_position) <= 3
    # One token comes with the prompt.
    assert stats["accept_length"] == pytest.approx(23 / stats["decode_steps"])
    assert 1 < stats["accept_length"] <= 4
    details = usage.completion_tokens_details
    assert details.accepted_prediction_tokens == stats["num_accepted_tokens"]
    rejected = stats["num_draft_tokens"] - stats["num_accepted_tokens"]
    assert details.rejected_prediction_tokens == rejected


def test_a_stream_gets_the_same(drafting_server, kind):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    assert ask(drafting_server, kind, **options) == ask(drafting_server, kind)


def test_the_sequences_of_a_call_are_summed(drafting_server, kind):
    one = ask(drafting_server, kind, extra_body={"ignore_eos": True}).specdecode
    three = ask(drafting_server, kind, n=3, extra_body={"ignore_eos": True}).specdecode
    for name in COUNTS:
        assert three[name] == 3 * one[name]
    by_position = one["num_accepted_tokens_per_pos"]
    assert three["num_accepted_tokens_per_pos"] == [3 * count for count in by_position]
    assert three["accept_length"] == one["accept_length"]


def test_without_a_round_there_is_no_accept_length(drafting_server, kind):
    stats = ask(drafting_server, kind, max_tokens=1).specdecode
    nothing: dict[str, object] = {**dict.fromkeys(COUNTS, 0), "num_accepted_tokens_per_pos": []}
    assert stats == nothing | {"accept_length": None}


def test_plain_decoding_is_one_token_a_round(built_server, kind):
    stats = ask(built_server, kind, extra_body={"ignore_eos": True}).specdecode
    nothing: dict[str, object] = {**dict.fromkeys(COUNTS, 0), "num_accepted_tokens_per_pos": []}
    assert stats == nothing | {"decode_steps": 23, "accept_length": 1.0}
