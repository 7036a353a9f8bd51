"""Bodies that would hold the interpreter are refused unparsed, and useful ones are not."""

import json
import random
from typing import Any

import pytest

from specdecode_engine.serve import json_body
from specdecode_engine.serve.errors import HttpError
from specdecode_engine.serve.json_body import MAX_NODES, count_nodes, parse_json
from specdecode_engine.serve.openai.chat_protocol import ChatBody
from specdecode_engine.serve.openai.protocol import CompletionBody

MESSAGE = {"role": "user", "content": "hi"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
PROPERTY = {"type": "string", "description": "what it is", "enum": ["a", "b", "c"]}


def tool(number: int) -> dict[str, Any]:
    properties = {f"property_{each}": PROPERTY for each in range(50)}
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": f"f{number}", "parameters": schema}}


def encode(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def nodes_of(value: object) -> int:
    match value:
        case dict():
            return 1 + sum(1 + nodes_of(each) for each in value.values())
        case list():
            return 1 + sum(map(nodes_of, value))
    return int(isinstance(value, str))


@pytest.mark.parametrize(
    "items",
    [
        '"k%d":1', '"k%d":[]', '"k":{"":%d}', '"k%d":""', '"\\\\":"\\\\","%d":[]',
        '"k":[[[[[%d]]]]]', '"a\\"":"]","k%d":[{}]',
    ],
)  # fmt: skip
def test_a_body_of_very_many_small_values_is_refused_unparsed(items: str) -> None:
    values = ",".join(items % each for each in range(2 * MAX_NODES))
    data = f'{{"prompt":"a",{values}}}'.encode()
    with pytest.raises(HttpError) as refused:
        parse_json(CompletionBody, data)
    assert (refused.value.status, refused.value.code) == (400, "json_too_complex")
    assert f"the body has at least {count_nodes(data)} JSON objects" in str(refused.value)
    assert f"at most {MAX_NODES} are accepted; split it" in str(refused.value)


def test_what_useful_requests_have_is_accepted() -> None:
    assistant = {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]}
    result = {"role": "tool", "tool_call_id": "a", "content": '{"a": [{"b": "c"}]}' * 50}
    parts = {"role": "user", "content": [{"type": "text", "text": "[{" * 100}] * 4}
    conversation = [MESSAGE, parts, assistant, result] * 500
    chat = {"messages": conversation, "tools": [tool(number) for number in range(128)]}
    assert len(parse_json(ChatBody, encode(chat)).messages) == 2000
    biases = {str(each): 1 for each in range(1024)}
    completion = {"prompt": [123_456] * 131_072, "logit_bias": biases}
    assert parse_json(CompletionBody, encode(completion)).prompt == ((123_456,) * 131_072,)
    for text in ('{"a": [1, "b"]}' * 200_000, "[{" * 10**6, '\\"[' * 10**6, "[\n" * 10**6):
        assert parse_json(CompletionBody, encode({"prompt": text})).prompt == (text,)


def test_brackets_in_texts_are_no_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "MAX_NODES", 40)
    random.seed(7)
    for _ in range(300):
        texts = ["".join(random.choices('a"\\[{é\n', k=random.randrange(9))) for _ in range(12)]
        document: dict[str, Any] = {"texts": [text or [{}] for text in texts], "brackets": "[" * 40}
        ending = sum(text.endswith("\\") for text in texts)  # whose second quote is not counted
        assert count_nodes(encode(document)) == nodes_of(document) - (ending + 1) // 2
