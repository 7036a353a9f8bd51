"""The grammar of a message: reasoning, then calls of tools or constrained content."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from specdecode_engine.grammar import GrammarSource, MessageGrammar, NamedSchema
from specdecode_engine.serve.parsers import harmony
from specdecode_engine.serve.parsers.call_grammar import (
    WRAPPED,
    CallGrammar,
    ToolSchema,
    UnsupportedSchema,
)
from specdecode_engine.serve.parsers.call_grammars import CALL_GRAMMARS
from specdecode_engine.serve.parsers.lark import ANY_TEXT, LarkRules, either, literal, slashed

__all__ = ["MessageConstraint", "ReasoningSpan", "ToolSchema", "UnsupportedSchema", "constrain"]

HARMONY = "openai"


@dataclass(frozen=True, slots=True)
class ReasoningSpan:
    """The tags around reasoning; `is_open` if the prompt ends inside it."""

    start: str
    end: str
    is_open: bool


@dataclass(frozen=True, slots=True)
class MessageConstraint:
    """What a request demands of a message.

    Attributes:
        tool_format: name of the format of calls and, for harmony, of reasoning; None if unknown.
        reasoning: tags of the reasoning; None for a model without it, and for harmony.
        tools: the tools that may be called.
        is_required: the message consists of calls.
        is_parallel: it may contain several.
        content: the grammar of the content.
    """

    tool_format: str | None
    reasoning: ReasoningSpan | None = None
    tools: tuple[ToolSchema, ...] = ()
    is_required: bool = False
    is_parallel: bool = True
    content: GrammarSource | None = None

    @property
    def constrains_calls(self) -> bool:
        return bool(self.tools) and (self.is_required or any(t.is_strict for t in self.tools))


def constrain(
    constraint: MessageConstraint, special_ids: Mapping[str, int]
) -> GrammarSource | None:
    """Return the grammar of a message; None where every text is allowed.

    Args:
        special_ids: the ids of the vocabulary's special tokens by their spelling.

    Raises:
        UnsupportedSchema: the format of calls cannot be constrained to the schema of a tool.
    """
    if not constraint.constrains_calls and constraint.content is None:
        return None
    has_reasoning = constraint.reasoning is not None or constraint.tool_format == HARMONY
    has_markers = _content_markers(constraint) is not None
    if not constraint.tools and not has_reasoning and not has_markers:
        return constraint.content
    rules = LarkRules(special_ids)
    if constraint.tool_format == HARMONY:
        start, schemas = _harmony(rules, constraint)
    else:
        start, schemas = _tagged(rules, constraint)
    has_content = constraint.content is not None and not constraint.is_required
    content = constraint.content if has_content else None
    return MessageGrammar(rules.grammar(start), tuple(schemas), content).as_source()


def _tagged(rules: LarkRules, constraint: MessageConstraint) -> tuple[str, list[NamedSchema]]:
    reasoning = "" if constraint.reasoning is None else _reasoning(rules, constraint.reasoning)
    calls: CallGrammar | None = None
    if constraint.tools:
        assert constraint.tool_format is not None, "tools without a format of calls are refused"
        calls = CALL_GRAMMARS[constraint.tool_format](rules, constraint.tools)
    content = _marked_content(rules, _content_markers(constraint), "@content")
    if calls is None:
        message = content
    elif constraint.is_required:
        message = calls.calls(constraint.is_parallel)
    elif constraint.content is not None:
        message = either([calls.calls(constraint.is_parallel), content])
    else:
        message = _free_text(rules, calls, constraint.is_parallel)
    return f"{reasoning} {message}", [] if calls is None else calls.schemas


def _reasoning(rules: LarkRules, span: ReasoningSpan) -> str:
    """Return what matches reasoning up to its end; up to two line breaks may follow, as usual."""
    inside = f'{rules.until(span.end)} "\\n"? "\\n"?'
    return inside if span.is_open else f"({rules.marker(span.start)} {inside})?"


def _content_markers(constraint: MessageConstraint) -> tuple[str, str] | None:
    grammar = CALL_GRAMMARS.get(constraint.tool_format or "")
    return None if grammar is None else grammar.content_markers


def _marked_content(rules: LarkRules, markers: tuple[str, str] | None, content: str) -> str:
    """Return what matches content and the markers around it; the prompt may end with the first."""
    if markers is None:
        return content
    begin, end = map(rules.marker, markers)
    return f"({begin})? {content} ({end})?"


def _free_text(rules: LarkRules, calls: CallGrammar, is_parallel: bool) -> str:
    """Return what matches text in which every call that begins is completed."""
    assert calls.trigger is not None
    if calls.content_markers is not None:
        text = rules.text(*calls.content_markers, calls.trigger)
        content = _marked_content(rules, calls.content_markers, text)
        return either([calls.calls(is_parallel), content])
    call = rules.add(calls.after_trigger())
    if calls.bare:
        other = rf"(\s*[^\s{slashed(re.escape(calls.bare))}]{ANY_TEXT})?"
        text = rules.add(f"/{other}/", "TEXT")
        return either(
            [calls.calls(is_parallel), f"{rules.until(calls.trigger, other)} {call}", text]
        )
    before = rules.until(calls.trigger)
    if rules.is_special(calls.wrapper):  # which is not part of any text
        opening = f"{rules.marker(calls.wrapper)} {literal(WRAPPED + calls.trigger)}"
        before = either([before, f"{rules.text(calls.trigger)} {opening}"])
    head = rules.add(f"{before} {call}")
    count = "*" if is_parallel else "?"
    return f"{head}{count} {rules.text(calls.trigger)}"


def _harmony(rules: LarkRules, constraint: MessageConstraint) -> tuple[str, list[NamedSchema]]:
    channel, message = rules.marker(harmony.CHANNEL), rules.marker(harmony.MESSAGE)
    between = f'{rules.marker(harmony.START)} "assistant"'
    body = rules.until(harmony.MESSAGE_END)
    analysis = rules.add(f'{channel} "analysis" {message} {body} {between}')
    calls = _HarmonyCalls(rules, constraint.tools)
    ends = [rules.add(calls.calls(False))] if constraint.tools else []
    if not constraint.is_required:
        text = "@content" if constraint.content is not None else rules.text(harmony.MESSAGE_END)
        ends.append(rules.add(f'{channel} "final" {message} {text}'))
    preamble = rules.add(f'{channel} "commentary" {message} {body} {between}')
    # One message of reasoning before a required call, which a model could put off for ever.
    before = f"{analysis}?" if constraint.is_required else f"{either([analysis, preamble])}*"
    return f"{before} {either(ends)}", calls.schemas


class _HarmonyCalls(CallGrammar):
    def calls(self, is_parallel: bool) -> str:
        rules = self.rules
        header = f"{rules.marker(harmony.CHANNEL)} {literal('commentary to=functions.')}"
        kind = f'" " {rules.marker(harmony.CONSTRAIN)} "json" {rules.marker(harmony.MESSAGE)}'
        call = self.one_of(lambda tool: f"{literal(tool.name)} {kind} {self.arguments(tool)}")
        return f"{header} {call}"
