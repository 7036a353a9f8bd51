"""The grammar of a chat's answer: reasoning, calls of tools, and constrained content."""

from collections.abc import Iterable
from typing import Any

from specdecode_engine.grammar import GrammarSource
from specdecode_engine.serve import errors
from specdecode_engine.serve.openai.chat_protocol import ChatBody
from specdecode_engine.serve.openai.constraints import read_constraint
from specdecode_engine.serve.openai.tools import FunctionTool
from specdecode_engine.serve.parsers.formats import MessageFormats
from specdecode_engine.serve.parsers.reasoning import ReasoningTags
from specdecode_engine.serve.parsers.tool_grammar import (
    MessageConstraint,
    ReasoningSpan,
    ToolSchema,
    UnsupportedSchema,
    constrain,
)
from specdecode_engine.serve.text.tokenizer import Vocabulary

NO_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}


def read_message_constraint(
    body: ChatBody, formats: MessageFormats, in_reasoning: bool, vocabulary: Vocabulary
) -> tuple[str, GrammarSource] | None:
    """Return the field of a body that constrains its answer, and the grammar; None without one.

    `tool_choice` required or a function demands calls, `strict` valid arguments of calls, and the
    fields of structured output constrain content; all of them after the reasoning.

    Args:
        in_reasoning: the prompt ends inside reasoning.

    Raises:
        HttpError: two fields constrain the content, or a schema cannot be enforced.
    """
    content = read_constraint(body)
    tags = formats.reasoning
    constraint = MessageConstraint(
        tool_format=formats.tools.name if formats.tools else None,
        reasoning=_span(tags, in_reasoning),
        tools=callable_tools(body),
        is_required=body.requires_calls,
        is_parallel=body.is_parallel,
        content=content and content[1],
    )
    field = "tools" if constraint.constrains_calls or content is None else content[0]
    if body.format_field and field.partition(".")[0] == "response_format":
        field = body.format_field + (".schema" if field.endswith(".schema") else "")
    names = formats.special_tokens(has_tools=True)
    try:
        source = constrain(constraint, _special_ids(vocabulary, names))
    except UnsupportedSchema as error:
        raise errors.invalid("tools", str(error), "invalid_grammar") from None
    return None if source is None else (field, source)


def _span(tags: ReasoningTags | None, is_open: bool) -> ReasoningSpan | None:
    return None if tags is None else ReasoningSpan(tags.start, tags.end, is_open, tags.answer)


def callable_tools(body: ChatBody) -> tuple[ToolSchema, ...]:
    """Return the tools that a call may name, with the fields that describe them."""
    named = body.tool_choice and body.tool_choice.named
    names = {tool.function.name for tool in body.offered_tools}
    return tuple(
        _schema(f"tools[{index}].{body.parameters_field}", tool)
        for index, tool in enumerate(body.tools or ())
        if tool.function.name in (names if named is None else {named})
    )


def _schema(place: str, tool: FunctionTool) -> ToolSchema:
    function = tool.function
    return ToolSchema(
        function.name,
        NO_PARAMETERS if function.parameters is None else function.parameters,
        bool(function.strict),
        place,
    )


def _special_ids(vocabulary: Vocabulary, names: Iterable[str]) -> dict[str, int]:
    ids = vocabulary.special_tokens(names)
    return {vocabulary.shown(token_id): token_id for token_id in ids}
