"""Tencent's Hy3 and Hy4: calls as in GLM-4.5 between `<tool_calls>` and `</tool_calls>`.

Hy3 writes `<tool_call>NAME<tool_sep>` and a line break after each tag, Hy4 neither. A checkpoint
may give all its tags a suffix (`<tool_call:opensource>`), which its vocabulary shows. Facts: vLLM's
`hy_v3` and `hy_v4`, SGLang's `hunyuan`.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.glm import TAGS, CallTags, GlmParser
from specdecode_engine.serve.parsers.message import MessageFormat, ParserContext
from specdecode_engine.serve.parsers.reading import NAME, NAME_CHARS, Steps
from specdecode_engine.serve.parsers.reasoning import ReasoningTags

CALLS, CALLS_END, SEPARATOR = "<tool_calls>", "</tool_calls>", "<tool_sep>"
NAMES = ("hy_v3", "hy_v4")
_SUFFIXED = re.compile(r"<(?:think|tool_calls|tool_call|arg_key|arg_value)(:[^\s<>]+)>")


def find_suffix(spellings: Iterable[str]) -> str:
    """Return the suffix of the tags among the tokens of a vocabulary; empty without one."""
    found = (match[1] for each in spellings if (match := _SUFFIXED.fullmatch(each)))
    return next(found, "")


def suffixed(tag: str, suffix: str) -> str:
    return f"{tag[:-1]}{suffix}>"


def call_tags(suffix: str) -> CallTags:
    return CallTags(*(suffixed(tag, suffix) for tag in TAGS))


class HyParser(GlmParser):
    """Reads both, and calls within one pair of outer tags."""

    def __init__(self, context: ParserContext, suffix: str = "") -> None:
        super().__init__(context, call_tags(suffix))
        self._calls, self._calls_end = suffixed(CALLS, suffix), suffixed(CALLS_END, suffix)
        self._separator = suffixed(SEPARATOR, suffix)

    def read(self) -> Steps[None]:
        calls = Markers(self._calls)
        while (yield from self.read_until(calls, self.write_content)):
            opening = self._calls + (yield from self.take_space())
            while (yield from self.skip(self.tags.begin)):
                if not (yield from self._read_call(opening + self.tags.begin)):
                    break
                opening = yield from self.take_space()
            else:
                if not (yield from self.skip(self._calls_end)):
                    self.write_content(opening)

    def _read_call(self, opening: str) -> Steps[bool]:
        """Read a call after `<tool_call>`; return whether it is one and complete."""
        space = yield from self.take_space()
        name = yield from self.take_run(NAME_CHARS)
        taken = opening + space + name + (yield from self.take_space())
        has_separator = yield from self.skip(self._separator)
        taken += self._separator if has_separator else ""
        taken += yield from self.take_space()
        has_key = yield from self.skip(self.tags.key)
        is_call = has_separator or has_key or (yield from self._is_end_next())
        if not is_call or not NAME.fullmatch(name):
            self.write_content(taken + (self.tags.key if has_key else ""))
            return False
        self.begin_call(name)
        self.add_arguments("{")
        if has_key:
            is_whole = yield from self.read_arguments(name, has_key)
        else:
            is_whole = yield from self._is_end_next()
            yield from self.skip(self.tags.end)
        self.add_arguments("}" if is_whole else "")
        return is_whole

    def _is_end_next(self) -> Steps[bool]:
        """Whether `</tool_call>` is next, or what the end of the text has cut of it."""
        while (is_next := self.buffer.starts_with(self.tags.end)) is None:
            yield
        return is_next or (self.buffer.is_cut(self.tags.end) and len(self.buffer) > 1)


def tool_tokens(suffix: str) -> frozenset[str]:
    """Return the tags of calls."""
    others = (suffixed(tag, suffix) for tag in (CALLS, CALLS_END, SEPARATOR))
    return frozenset({*call_tags(suffix), *others})


def with_suffix(tools: MessageFormat, suffix: str) -> MessageFormat:
    """Return the format of calls with a suffix in its tags."""
    return replace(
        tools,
        special_tokens=tool_tokens(suffix),
        make_parser=partial(HyParser, suffix=suffix),
        call_markers=(suffixed(CALLS, suffix),),
    )


def reasoning_with_suffix(tags: ReasoningTags, suffix: str) -> ReasoningTags:
    return replace(tags, start=suffixed(tags.start, suffix), end=suffixed(tags.end, suffix))
