"""The text of a request, cut into blocks whose hashes name the text up to their ends."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

BLOCK_CHARACTERS: Final = 512
MAX_BLOCKS: Final = 2048
"""Of a request; what follows a million characters does not count."""
MAX_PARSED_BYTES: Final = 2**20
MAX_PARSED_MARKS: Final = 150_000
"""Of quotes, commas and opening brackets, those in texts included: more than a prompt of 131,072
token ids has. A body with more, or a longer one, is cut as it is, because to parse it would delay
other streams."""
MAX_CUT_BYTES: Final = 4 * BLOCK_CHARACTERS * (MAX_BLOCKS + 1)
"""Of a body that is cut as it is: a character has at most four."""
DIGEST_BYTES: Final = 8

_MARKS: Final = b'",[{'
_ADAPTER_FIELDS: Final = ("model", "lora_path")
_PART_FIELDS: Final = ("text", "refusal", "thinking", "content", "input")


@dataclass(frozen=True, slots=True)
class PromptBlocks:
    """Hashes of a prompt's full blocks, and of the whole prompt.

    Each hash depends on all text before it, so that equal hashes are equal beginnings.
    """

    hashes: tuple[bytes, ...]
    whole: bytes

    def branch_key(self, shared: int) -> bytes:
        """Return a name of what follows the first `shared` blocks."""
        return self.hashes[shared] if shared < len(self.hashes) else self.whole


def cut_prompt(body: bytes) -> PromptBlocks:
    """Cut the prompt of a client's body, which may be anything."""
    return cut_text("".join(_prompt_pieces(body)))


def cut_text(text: str) -> PromptBlocks:
    """Cut a text into chain-hashed blocks."""
    hashes: list[bytes] = []
    last = b""
    end = min(len(text) // BLOCK_CHARACTERS, MAX_BLOCKS) * BLOCK_CHARACTERS
    for start in range(0, end, BLOCK_CHARACTERS):
        last = _hash(last, text[start : start + BLOCK_CHARACTERS])
        hashes.append(last)
    return PromptBlocks(tuple(hashes), _hash(last, text[end : end + BLOCK_CHARACTERS]))


def _hash(before: bytes, text: str) -> bytes:
    return blake2b(before + text.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()


def _prompt_pieces(body: bytes) -> Iterator[str]:
    if len(body) <= MAX_PARSED_BYTES and sum(map(body.count, _MARKS)) <= MAX_PARSED_MARKS:
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            document = None
        if isinstance(document, dict):
            yield from _pieces_of(document)
            return
    yield body[:MAX_CUT_BYTES].decode(errors="replace")


def _pieces_of(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the prompt in the order in which chat templates write it: tools, then messages.

    Adapter and salt come first: an engine's cached pages serve requests of the same ones alone.
    Routers do not know which names are adapters, so requests share a beginning if they name the
    same model.
    """
    for field in _ADAPTER_FIELDS:
        if document.get(field):
            yield f"<{field}>{_text(document[field])}</{field}>"
    if document.get("cache_salt"):
        yield f"<salt>{_text(document['cache_salt'])}</salt>"
    for field in ("tools", "instructions", "system"):
        if document.get(field):
            yield _content(document[field]) if field == "system" else _text(document[field])
    if "prompt" in document:
        yield _text(document["prompt"])
    messages = document.get("messages", document.get("input"))
    if isinstance(messages, list):
        yield from _messages(messages)
    elif messages is not None:
        yield _text(messages)


def _messages(messages: Iterable[Any]) -> Iterator[str]:
    for message in messages:
        if not isinstance(message, dict):
            yield _text(message)
            continue
        name = message.get("role") or message.get("type")
        yield f"\n<{name if isinstance(name, str) else ''}>\n"
        for field in ("reasoning_content", "content", "tool_calls", "arguments", "output"):
            if message.get(field):
                yield _content(message[field])


def _content(content: Any) -> str:
    """Return the text of a message, of which parts are joined as the engine does."""
    if not isinstance(content, list):
        return _text(content)
    return "\n".join(map(_part, content))


def _part(part: Any) -> str:
    """Return the text of a part, or of a call or its result; engines refuse other parts."""
    fields = part if isinstance(part, dict) else {}
    return next((_text(fields[name]) for name in _PART_FIELDS if fields.get(name)), "")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:  # which the parser has just missed
        return ""
