"""The formats of a checkpoint's messages, and the parsers that they make."""

from dataclasses import dataclass

from specdecode_api.boot import ServerBoot
from specdecode_engine.serve.parsers.detection import detect_reasoning_format
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
)


@dataclass(frozen=True, slots=True)
class MessageFormats:
    """How a checkpoint writes reasoning and tool calls; None for what it does not write."""

    reasoning: ReasoningTags | None = None
    tools: MessageFormat | None = None

    def special_tokens(self, has_tools: bool) -> frozenset[str]:
        """The special tokens whose spelling the parsers read."""
        tags = self.reasoning
        reasoning = frozenset[str]() if tags is None else frozenset({tags.start, tags.end})
        tools = self.tools.special_tokens if self.tools and has_tools else frozenset[str]()
        return reasoning | tools

    def make_parser(self, context: ParserContext) -> ReasoningParser:
        """Return a parser for one text; calls are found only if the request has tools."""
        reasoning: ReasoningParser = ContentParser()
        if self.reasoning is not None:
            reasoning = TaggedReasoningParser(self.reasoning, context.in_reasoning)
        if self.tools is None or not context.parameters:
            return reasoning
        return ChainedParser(reasoning, self.tools.make_parser(context))


def resolve_formats(template: str, server: ServerBoot) -> MessageFormats:
    """Return the formats that the boot file names, or that the chat template shows."""
    name: str | None = server.reasoning_parser
    if name == "auto":
        name = detect_reasoning_format(template)
    return MessageFormats(REASONING_TAGS.get(name or "none"))
