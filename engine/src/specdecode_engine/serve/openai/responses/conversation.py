"""The conversation of a response, as it is stored: input items with ids, one line of JSON each."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter

from specdecode_engine.serve import errors
from specdecode_engine.serve.control.response_store import StoredResponse
from specdecode_engine.serve.json_body import MAX_NODES, excess_nodes
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
        HttpError: an item is not in its response, or twice in the conversation, or this is too
            large.
    """
    field_name = "previous_response_id" if named.previous else "input"
    lines = [] if named.previous is None else _lines_of(named.previous)
    num_bytes = sum(map(len, lines))
    finder, known = _ItemFinder(), set(lines)
    for position, item in enumerate(body.input):
        if isinstance(item, ItemReference):
            line = finder.find(named.of_items[position], item.id)
            place = f"input[{position}].id"
            if not line:
                raise errors.response_not_found(item.id, place)
            if line in known:
                message = f"{place} is {item.id!r}: the conversation has this item; remove it here"
                raise errors.invalid(place, message, "duplicate_item")
            known.add(line)
        else:
            line = to_json(_as_sent(item, name, position))
        lines.append(line)
        num_bytes += len(line)
        if named and num_bytes > max_bytes:
            raise _too_large(f"{num_bytes} bytes", f"{max_bytes}", field_name)
    joined = b"\n".join(lines)
    if not named:
        return body, joined
    if nodes := excess_nodes(joined):
        shown = f"{nodes} JSON objects, lists and strings"
        raise _too_large(shown, f"{MAX_NODES}", field_name)
    items = _ITEMS.validate_json(as_list(lines))
    return body.model_copy(update={"input": items}), joined


def as_list(lines: Iterable[bytes]) -> bytes:
    """Return lines of JSON as a list."""
    return b"[%s]" % b",".join(lines)


def beginning_of(item_id: str) -> bytes:
    """Return what the line of the item with an id begins with."""
    return b'{"id":%s,' % json.dumps(item_id, ensure_ascii=False).encode(errors="replace")


def id_of(line: bytes) -> str:
    """Return the id of a stored item."""
    start = len(b'{"id":"')
    return line[start : line.index(b'"', start)].decode()


def _lines_of(record: StoredResponse) -> list[bytes]:
    """Return the items of a response and of the conversation before it."""
    output: Sequence[dict[str, Any]] = json.loads(record.response)["output"]
    return [*record.items.split(b"\n"), *map(to_json, output)]


class _ItemFinder:
    """Finds items by their ids; the input of each response is cut into lines once."""

    def __init__(self) -> None:
        self._new_lines: dict[int, list[bytes]] = {}

    def find(self, record: StoredResponse, item_id: str) -> bytes:
        """Return the line of an item of the new input or the output of a response; b"" if none."""
        beginning, number = beginning_of(item_id), item_id.rpartition("_")[2]
        if number.startswith("i"):
            lines, position = self._lines(record), int(number[1:])
            line = lines[position] if position < len(lines) else b""
            return line if line.startswith(beginning) else b""
        found = record.response.find(beginning)  # in a text, its quotes are escaped
        if found < 0:
            return b""
        text = record.response[found:].decode()
        return text[: _DECODER.raw_decode(text)[1]].encode()

    def _lines(self, record: StoredResponse) -> list[bytes]:
        lines = self._new_lines.get(id(record))
        if lines is None:
            lines = record.items.rsplit(b"\n", record.num_new)[-record.num_new :]
            self._new_lines[id(record)] = lines
        return lines


def _too_large(size: str, limit: str, field_name: str) -> errors.HttpError:
    return errors.too_long(
        f"the items that {field_name} names and those of input have at least {size} together; at "
        f"most {limit} are accepted; send fewer items in input, and store: false",
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
