"""Texts of each format of tool calls, and what a parser makes of a text."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from specdecode_engine.serve.parsers.message import (
    ContentDelta,
    MessageDelta,
    ParserContext,
    ReasoningDelta,
    ToolCallDelta,
)
from specdecode_engine.serve.parsers.reading import StreamingParser
from specdecode_engine.serve.parsers.tool_formats import TOOL_FORMATS

FIXTURES = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((Path(__file__).parent / "fixtures").glob("*.json"))
}
CASES = [(name, case) for name, fixture in FIXTURES.items() for case in fixture["cases"]]
TOOLS: dict[str, Any] = FIXTURES["hermes"]["tools"]


@dataclass(frozen=True)
class ParsedText:
    """A whole message: the parts of each kind joined."""

    content: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]


def make_parser(name: str) -> StreamingParser:
    parser = TOOL_FORMATS[name].make_parser(ParserContext(parameters=TOOLS))
    assert isinstance(parser, StreamingParser)
    return parser


def parse(name: str, pieces: Iterable[str]) -> ParsedText:
    parser = make_parser(name)
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    return join([*deltas, *parser.flush()])


def join(deltas: Iterable[MessageDelta]) -> ParsedText:
    """Join deltas; the first delta of a call, and only that, has its name."""
    content, reasoning = "", ""
    calls: list[tuple[str, str]] = []
    for delta in deltas:
        if isinstance(delta, ContentDelta):
            content += delta.text
        elif isinstance(delta, ReasoningDelta):
            reasoning += delta.text
        else:
            assert isinstance(delta, ToolCallDelta)
            assert (delta.name is not None) == (delta.index == len(calls))
            if delta.name is not None:
                calls.append((delta.name, ""))
            name, arguments = calls[delta.index]
            calls[delta.index] = name, arguments + delta.arguments
    return ParsedText(content, reasoning, tuple(calls))


def cut(text: str, positions: Iterable[int]) -> list[str]:
    """Cut a text at positions, taken modulo its length."""
    borders = sorted({0, len(text), *(position % (len(text) + 1) for position in positions)})
    return [text[start:end] for start, end in pairwise(borders)]
