"""The formats of a checkpoint's messages, and the parsers that they make."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from specdecode_api.boot import ServerBoot
from specdecode_engine.serve.parsers import hy
from specdecode_engine.serve.parsers.answer import AnswerParser
from specdecode_engine.serve.parsers.harmony import HarmonyParser
from specdecode_engine.serve.parsers.message import (
    ChainedParser,
    ContentParser,
    MessageFormat,
    ParserContext,
    ReasoningParser,
)
from specdecode_engine.serve.parsers.reasoning import (
    REASONING_TAGS,
    ReasoningTags,
    TaggedReasoningParser,
    detect_reasoning_format,
)
from specdecode_engine.serve.parsers.thought_calls import CallFinder
from specdecode_engine.serve.parsers.tool_formats import TOOL_FORMATS, detect_tool_format

HARMONY_REASONING, HARMONY_TOOLS = "openai_gptoss", "openai"


@dataclass(frozen=True, slots=True)
class MessageFormats:
    """How a checkpoint writes reasoning and tool calls; None for what it does not write.

    One parser reads all of harmony.
    """

    reasoning: ReasoningTags | None = None
    tools: MessageFormat | None = None

    @property
    def is_harmony(self) -> bool:
        return self.tools is not None and self.tools.name == HARMONY_TOOLS

    def special_tokens(self, has_tools: bool) -> frozenset[str]:
        """The special tokens whose spelling the parsers read."""
        tags = self.reasoning
        reasoning = frozenset[str]()
        if tags is not None:
            reasoning = frozenset({tags.start, tags.end, *(tags.answer or ())})
        if self.tools is None or not (has_tools or self.tools.marks_content):
            return reasoning
        return reasoning | self.tools.special_tokens

    def make_parser(self, context: ParserContext) -> ReasoningParser:
        """Return a parser for one text; calls are found only if the request has tools."""
        if self.is_harmony:
            return HarmonyParser(context)
        reasoning: ReasoningParser = ContentParser()
        if self.reasoning is not None:
            finder = self._call_finder(context)
            reasoning = TaggedReasoningParser(self.reasoning, context.in_reasoning, finder)
            if self.reasoning.answer is not None:
                reasoning = ChainedParser(reasoning, AnswerParser(self.reasoning.answer))
        if self.tools is None or not (context.parameters or self.tools.marks_content):
            return reasoning
        return ChainedParser(reasoning, self.tools.make_parser(context))

    def _call_finder(self, context: ParserContext) -> CallFinder | None:
        if self.tools is None or not (context.parameters and context.calls_in_reasoning):
            return None
        if not self.tools.call_markers:  # its calls are none within reasoning
            return None
        return CallFinder(self.tools.call_markers, partial(self.tools.make_parser, context))


def resolve_formats(
    template: str, server: ServerBoot, added_tokens: Iterable[str] = ()
) -> MessageFormats:
    """Return the formats that the boot file names, or that the chat template shows.

    Harmony writes reasoning and calls in one format, which either of the two names chooses.

    Args:
        added_tokens: of the vocabulary, which show the suffix of the tags of Hy3 and Hy4.
    """
    reasoning: str | None = server.reasoning_parser
    tools: str | None = server.tool_parser
    if reasoning == "auto":
        reasoning = detect_reasoning_format(template)
    if tools == "auto":
        tools = detect_tool_format(template)
    if reasoning == HARMONY_REASONING or tools == HARMONY_TOOLS:
        return MessageFormats(tools=TOOL_FORMATS[HARMONY_TOOLS])
    formats = MessageFormats(REASONING_TAGS.get(reasoning or ""), TOOL_FORMATS.get(tools or ""))
    suffix = hy.find_suffix(added_tokens)
    if not suffix:
        return formats
    if formats.reasoning is not None and reasoning in hy.NAMES:
        tags = hy.reasoning_with_suffix(formats.reasoning, suffix)
        formats = replace(formats, reasoning=tags)
    if formats.tools is not None and tools in hy.NAMES:
        formats = replace(formats, tools=hy.with_suffix(formats.tools, suffix))
    return formats
