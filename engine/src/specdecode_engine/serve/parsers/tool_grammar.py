"""The grammar of a message: reasoning, then calls of tools or constrained content."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from specdecode_engine.grammar import GrammarSource, MessageGrammar, NamedSchema
from specdecode_engine.serve.parsers import harmony
from specdecode_engine.serve.parsers.answer import AnswerTags
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
    """The tags around reasoning; `is_open` if the prompt ends inside it.

    `answer` are the tags around content, which may be missing.
    """

    start: str
    end: str
    is_open: bool
    answer: AnswerTags | None = None


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
    has_markers = _has_content_markers(constraint)
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
    around = _around_content(rules, constraint)
    if calls is None:
        message = _marked(around, "@content")
    elif constraint.is_required:
        message = calls.calls(constraint.is_parallel)
    elif constraint.content is not None:
        message = either([calls.calls(constraint.is_parallel), _marked(around, "@content")])
    else:
        message = _free_text(rules, calls, constraint)
    return f"{reasoning} {message}", [] if calls is None else calls.schemas


def _reasoning(rules: LarkRules, span: ReasoningSpan) -> str:
    """Return what matches reasoning up to its end; up to two line breaks may follow, as usual."""
    inside = f'{rules.until(span.end)} "\\n"? "\\n"?'
    return inside if span.is_open else f"({rules.marker(span.start)} {inside})?"


def _has_content_markers(constraint: MessageConstraint) -> bool:
    grammar = CALL_GRAMMARS.get(constraint.tool_format or "")
    return grammar is not None and grammar.content_markers is not None


def _around_content(rules: LarkRules, constraint: MessageConstraint) -> tuple[str, str] | None:
    """Return what matches the markers before and after content; None without any."""
    grammar = CALL_GRAMMARS.get(constraint.tool_format or "")
    if grammar is not None and grammar.content_markers is not None:
        begin, end = map(rules.marker, grammar.content_markers)
        return begin, end
    tags = constraint.reasoning and constraint.reasoning.answer
    if tags is None:
        return None
    return f'{rules.marker(tags.start)} "\\n"?', f'"\\n"? {rules.marker(tags.end)} "\\n"?'


def _marked(around: tuple[str, str] | None, content: str) -> str:
    """Return what matches content and the markers around it; the prompt may end with the first."""
    if around is None:
        return content
    begin, end = around
    return f"({begin})? {content} ({end})?"


def _content_tokens(rules: LarkRules, constraint: MessageConstraint) -> tuple[str, ...]:
    """Return the markers around content that are not part of free text."""
    grammar = CALL_GRAMMARS[constraint.tool_format or ""]
    if grammar.content_markers is not None:
        return grammar.content_markers
    tags = constraint.reasoning and constraint.reasoning.answer
    return tuple(tag for tag in tags or () if rules.is_special(tag))


def _free_text(rules: LarkRules, calls: CallGrammar, constraint: MessageConstraint) -> str:
    """Return what matches text in which every call that begins is completed."""
    assert calls.triggers
    is_parallel = constraint.is_parallel
    if markers := _content_tokens(rules, constraint):
        text = rules.text(*markers, *calls.triggers)
        content = _marked(_around_content(rules, constraint), text)
        return either([calls.calls(is_parallel), content])
    call = rules.add(calls.after_trigger())
    if calls.bare:
        other = rf"(\s*[^\s{slashed(re.escape(calls.bare))}]{ANY_TEXT})?"
        text = rules.add(f"/{other}/", "TEXT")
        return either(
            [calls.calls(is_parallel), f"{rules.until(calls.triggers[0], other)} {call}", text]
        )
    before = rules.until_any(*calls.triggers)
    if rules.is_special(calls.wrapper):  # which is not part of any text
        opening = f"{rules.marker(calls.wrapper)} {literal(WRAPPED + calls.triggers[0])}"
        before = either([before, f"{rules.text(*calls.triggers)} {opening}"])
    head = rules.add(f"{before} {call}")
    count = "*" if is_parallel else "?"
    return f"{head}{count} {rules.text(*calls.triggers)}"


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
