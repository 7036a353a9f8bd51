"""The section of docs/from-vllm-and-sglang.md with the fields of requests, a table for each path.

The rows are those of `checks.peer_fields`; the remedies are the engine's own, from the errors of
its bodies. `scripts.flag_table` writes the page.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from checks.peer_fields.places import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from checks.peer_fields.table import RequestField, RequestFields, Source, Verdict
from specdecode_engine.serve.anthropic.messages_protocol import MessagesBody
from specdecode_engine.serve.errors import HttpError, from_validation
from specdecode_engine.serve.openai.chat_protocol import ChatBody
from specdecode_engine.serve.openai.protocol import CompletionBody
from specdecode_engine.serve.openai.responses.protocol import ResponsesBody

_CONVERSATION: Mapping[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
BODIES: Mapping[str, tuple[type[BaseModel], Mapping[str, Any]]] = {
    COMPLETIONS: (CompletionBody, {"prompt": "a"}),
    CHAT: (ChatBody, _CONVERSATION),
    RESPONSES: (ResponsesBody, {"input": "a"}),
    MESSAGES: (MessagesBody, {**_CONVERSATION, "max_tokens": 1}),
}
"""A body of each path without the field that is refused."""
TOOLS: Mapping[str, list[dict[str, Any]]] = {
    RESPONSES: [{"type": "function", "name": "f"}],
    MESSAGES: [{"name": "f", "input_schema": {}}],
}
TITLES = {
    Source.VLLM: "vLLM",
    Source.SGLANG: "SGLang",
    Source.OPENAI: "OpenAI",
    Source.ANTHROPIC: "Anthropic",
}

HEAD = (
    "\n## Fields of requests\n\n"
    "Every field of the request models of vLLM {vllm} and SGLang {sglang}, and every parameter of "
    "the create calls of the Python SDKs openai {openai} and anthropic {anthropic} (beta "
    "included). A field *works*, is *ignored* because no answer depends on it, or is *refused*: "
    "status 400 with its name and a remedy, unless its value changes nothing (null, false, the "
    "default). A dot leads into an object, `[]` into each of a list. [The API](api.md) describes "
    "the fields that work, and the rule for fields that are in no table.\n\n"
    "`make peer-fields` reads the fields from the wheels and fails where one has no row. Each row "
    "is tested: an answer changes with a field that works and does not with an ignored one.\n"
)


def section(table: RequestFields) -> str:
    """Return the section: a table for each path."""
    versions = {str(source): version for source, version in table.versions.items()}
    parts = [HEAD.format_map(versions)]
    for path in table.paths:
        parts += [f"\n### Fields of {path}\n\n", _table(table.of(path))]
    return "".join(parts)


def _table(rows: Iterable[RequestField]) -> str:
    groups = dict[tuple[Verdict, tuple[Source, ...], str], list[str]]()
    for row in sorted(rows, key=lambda row: list(Verdict).index(row.verdict)):
        groups.setdefault((row.verdict, row.sources, _here(row)), []).append(row.name)
    sources = [each for each in Source if any(each in key[1] for key in groups)]
    head = ["field", *(TITLES[each] for each in sources), "here"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for (_, defining, text), names in groups.items():
        marks = ("yes" if each in defining else "" for each in sources)
        fields = ", ".join(f"`{name}`" for name in names)
        lines.append(f"| {' | '.join([fields, *marks, text])} |")
    return "\n".join(lines) + "\n"


def _here(row: RequestField) -> str:
    match row.verdict:
        case Verdict.WORKS:
            return "works"
        case Verdict.IGNORED:
            return f"ignored: {_with_code(row.reason or '')}"
        case Verdict.REFUSED:
            return f"refused: {_with_code(remedy(row))}"


def _with_code(text: str) -> str:
    """Mark flags, paths and names of fields as code."""
    return _CODE.sub(r"`\g<0>`", text)


_CODE = re.compile(r"(?<![\w\"/-])(--[a-z][a-z-]*|/v1/[a-z/]+|[a-z]+([._][a-z_]+)+)")


def remedy(row: RequestField) -> str:
    """Return what the engine's error recommends.

    Raises:
        ValueError: the engine accepts the field.
    """
    body, document = BODIES[row.path]
    if row.name.startswith("tools[]"):
        document = {**document, "tools": TOOLS[row.path]}
    document = row.set_in(document, row.value)
    try:
        body.model_validate(document)
    except ValidationError as error:
        return _without_name(from_validation(error, document), row)
    raise ValueError(f"{row.path} accepts {row.name}: {row.value}")


def _without_name(error: HttpError, row: RequestField) -> str:
    name = re.escape(row.name.replace("[]", "[0]"))
    text = re.sub(rf"^{name}( is [^:]*)?: ", "", str(error))
    return re.sub(r"^it is not supported[:;] ", "", text)
