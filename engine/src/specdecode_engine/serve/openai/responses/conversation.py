"""The conversation of a response, as it is stored: input items with ids, one line of JSON each."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter

from specdecode_engine.serve import errors
from specdecode_engine.serve.control.response_store import StoredResponse
from specdecode_engine.serve.json_body import MAX_NODES, count_nodes
from specdecode_engine.serve.openai.json_text import to_json
from specdecode_engine.serve.openai.responses.protocol import (
    CallOutputItem,
    CustomCallItem,
    FunctionCallItem,
    InputItem,
    ItemReference,
    MessageItem,
    ReasoningItem,
    ResponsesBody,
)

_ITEMS: Final = TypeAdapter(list[InputItem])
_DECODER: Final = json.JSONDecoder()
_ID_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "function_call_output": "fco",
    "custom_tool_call_output": "ctco",
}


@dataclass(frozen=True, slots=True)
class Named:
    """The stored responses that a request names: before its input, and by position of its items."""

    previous: StoredResponse | None = None
    of_items: Mapping[int, StoredResponse] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.previous is not None or bool(self.of_items)


def join_conversation(
    body: ResponsesBody, named: Named, name: str, max_bytes: int
) -> tuple[ResponsesBody, bytes]:
    """Return the body with the whole conversation as its input, and the lines of its items.

    Args:
        name: of the response that is generated, in the ids of new items.
        max_bytes: of the lines, where stored ones are among them.

    Raises:
        HttpError: an item is not in its response, or the conversation is too large.
    """
    lines = [] if named.previous is None else _lines_of(named.previous)
    for position, item in enumerate(body.input):
        if isinstance(item, ItemReference):
            lines.append(_referenced(named.of_items[position], item.id, position))
        else:
            lines.append(to_json(_as_sent(item, name, position)))
    joined = b"\n".join(lines)
    if not named:
        return body, joined
    _check_size(joined, max_bytes, "previous_response_id" if named.previous else "input")
    items = _ITEMS.validate_json(as_list(lines))
    return body.model_copy(update={"input": items}), joined


def as_list(lines: Iterable[bytes]) -> bytes:
    """Return lines of JSON as a list."""
    return b"[%s]" % b",".join(lines)


def id_of(line: bytes) -> str:
    """Return the id of a stored item; every line begins with it."""
    return line[len(b'{"id":"') : line.index(b'"', len(b'{"id":"'))].decode()


def _lines_of(record: StoredResponse) -> list[bytes]:
    """Return the items of a response and of the conversation before it."""
    output: Sequence[dict[str, Any]] = json.loads(record.response)["output"]
    return [*record.items.split(b"\n"), *map(to_json, output)]


def _referenced(record: StoredResponse, item_id: str, position: int) -> bytes:
    """Return the line of an item of the input or output of a stored response."""
    start = b'{"id":%s,' % json.dumps(item_id).encode()
    if record.items.startswith(start):
        return record.items.partition(b"\n")[0]
    found = record.items.rfind(b"\n" + start)
    if found >= 0:
        return record.items[found + 1 :].partition(b"\n")[0]
    found = record.response.find(start)  # no text in it has this, because its quotes are escaped
    if found < 0:
        raise errors.response_not_found(item_id, f"input[{position}].id")
    text = record.response[found:].decode()
    return text[: _DECODER.raw_decode(text)[1]].encode()


def _check_size(lines: bytes, max_bytes: int, field_name: str) -> None:
    if len(lines) > max_bytes:
        raise errors.too_long(
            f"the items that {field_name} names and those of input have {len(lines)} bytes "
            f"together; at most {max_bytes} are accepted; send fewer items in input, without "
            f"{field_name}",
            field_name,
        )
    if len(lines) > MAX_NODES and (nodes := count_nodes(lines)) > MAX_NODES:
        raise errors.too_long(
            f"the items that {field_name} names and those of input have at least {nodes} JSON "
            f"objects, lists and strings; at most {MAX_NODES} are accepted; send fewer items in "
            f"input, without {field_name}",
            field_name,
        )


def _as_sent(item: InputItem, name: str, position: int) -> dict[str, Any]:
    """Return an item as clients of OpenAI read it; parts of text are one."""
    fields = _fields(item)
    item_id = f"{_ID_PREFIXES[fields['type']]}_{name}_i{position}"
    return {"id": item_id, **fields, "status": "completed"}


def _fields(item: InputItem) -> dict[str, Any]:
    match item:
        case MessageItem(role="assistant"):
            part = {"type": "output_text", "text": item.content, "annotations": [], "logprobs": []}
            return {"type": "message", "role": item.role, "content": [part]}
        case MessageItem():
            part = {"type": "input_text", "text": item.content}
            return {"type": "message", "role": item.role, "content": [part]}
        case ReasoningItem():
            summary = [{"type": "summary_text", "text": item.summary}] if item.summary else []
            texts = [] if item.content is None else [item.content]
            content = [{"type": "reasoning_text", "text": text} for text in texts]
            return {"type": "reasoning", "summary": summary, "content": content}
        case FunctionCallItem() | CustomCallItem() | CallOutputItem():
            return item.model_dump(exclude_none=True)
        case ItemReference():
            raise AssertionError("a reference is replaced by the item that it names")
