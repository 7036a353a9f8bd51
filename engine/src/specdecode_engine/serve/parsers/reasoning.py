"""Reasoning between tags at the beginning of a text: DeepSeek-R1, Qwen3, GLM-4.5, Magistral, ….

Facts: chat templates of these models, and vLLM's reasoning parsers of the same names. Tags later in
the text are content: a user may ask about them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from specdecode_engine.serve.parsers.message import (
    ContentDelta,
    MessageDelta,
    ReasoningDelta,
    ReasoningParser,
)

MAX_LEADING_SPACE = 64
"""White space before the opening tag; more of it is content."""


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The tags of a family; they are special tokens in some vocabularies and text in others."""

    start: str
    end: str

    def are_open(self, prompt: str, continued: str = "") -> bool:
        """Whether a prompt ends inside reasoning, so that the text begins there.

        Only the end of the prompt counts, since messages may contain tags, and the assistant's
        message that the text continues.
        """
        is_opened = continued.rfind(self.start) > continued.rfind(self.end)
        return is_opened or prompt.rstrip().endswith(self.start)


THINK = ReasoningTags("<think>", "</think>")
REASONING_TAGS: Mapping[str, ReasoningTags] = {
    "deepseek_r1": THINK,
    "glm45": THINK,
    "mistral": ReasoningTags("[THINK]", "[/THINK]"),
    "qwen3": THINK,
}


def detect_reasoning_format(template: str) -> str | None:
    """Return the name of the format of reasoning, as vLLM names it; None without reasoning."""
    if "<|channel|>" in template:
        return "openai_gptoss"
    if "[THINK]" in template:
        return "mistral"
    if "</think>" not in template and "<think>" not in template:
        return None
    if "[gMASK]" in template:
        return "glm45"
    return "qwen3" if "<|im_start|>" in template else "deepseek_r1"


class _Part(Enum):
    BEGINNING = auto()  # an opening tag may follow
    REASONING = auto()
    CONTENT = auto()


class TaggedReasoningParser:
    """Separates reasoning from what follows it.

    Line breaks right after a tag and right before the closing one belong to neither part, as chat
    templates write and remove them.

    Args:
        is_open: the prompt ends inside reasoning; a repeated opening tag is then dropped.
    """

    def __init__(self, tags: ReasoningTags, is_open: bool) -> None:
        self._tags = tags
        self._unopened = _Part.REASONING if is_open else _Part.CONTENT
        self._part = _Part.BEGINNING
        self._held = ""
        self._is_at_start = True  # of the part: line breaks are dropped
        self._line_breaks = 0  # at the end of the reasoning so far

    @property
    def in_reasoning(self) -> bool:
        """Whether what follows is reasoning, as far as is known."""
        part = self._unopened if self._part is _Part.BEGINNING else self._part
        return part is _Part.REASONING

    @property
    def num_held(self) -> int:
        return 0 if self.in_reasoning else len(self._held)

    def push(self, piece: str) -> list[MessageDelta]:
        if self._part is _Part.BEGINNING:
            piece = self._open(self._held + piece)
        if self._part is _Part.REASONING:
            return self._read_reasoning(self._held + piece)
        return self._content(piece) if self._part is _Part.CONTENT else []

    def flush(self) -> list[MessageDelta]:
        held, self._held = self._held, ""
        if self._part is _Part.BEGINNING:
            self._begin(self._unopened)
        return self._reasoning(held) if self._part is _Part.REASONING else self._content(held)

    def _open(self, text: str) -> str:
        """Decide how the text begins, if that is certain; return what is not read yet."""
        start, bare = self._tags.start, text.lstrip()
        space = len(text) - len(bare)
        if space <= MAX_LEADING_SPACE and bare.startswith(start):
            self._begin(_Part.REASONING)
            return bare[len(start) :]
        if space <= MAX_LEADING_SPACE and start.startswith(bare):
            self._held = text
            return ""
        self._begin(self._unopened)
        return text

    def _begin(self, part: _Part) -> None:
        self._is_at_start = part is _Part.REASONING
        self._part = part
        self._held = ""

    def _read_reasoning(self, text: str) -> list[MessageDelta]:
        reasoning, end, rest = text.partition(self._tags.end)
        if end:
            deltas = self._reasoning(reasoning)
            self._part, self._held, self._is_at_start = _Part.CONTENT, "", True
            return deltas + self._content(rest)
        released = len(text) - partial_length(text, self._tags.end)
        self._held = text[released:]
        return self._reasoning(text[:released])

    def _reasoning(self, text: str) -> list[MessageDelta]:
        body = text.rstrip("\n")
        if not body:
            self._line_breaks += len(text)
            return []
        before = "\n" * self._line_breaks
        shown = body.lstrip("\n") if self._is_at_start else before + body
        self._is_at_start = False
        self._line_breaks = len(text) - len(body)
        return [ReasoningDelta(shown)]

    def _content(self, text: str) -> list[MessageDelta]:
        shown = text.lstrip("\n") if self._is_at_start else text
        self._is_at_start = self._is_at_start and not shown
        return [ContentDelta(shown)] if shown else []


def partial_length(text: str, marker: str) -> int:
    """Return the length of the longest proper prefix of `marker` that the text ends with."""
    lengths = range(min(len(marker) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(marker[:length])), 0)


class HiddenReasoning:
    """Leaves out the reasoning that a parser finds: `include_reasoning: false`."""

    def __init__(self, parser: ReasoningParser) -> None:
        self._parser = parser

    @property
    def in_reasoning(self) -> bool:
        return self._parser.in_reasoning

    @property
    def num_held(self) -> int:
        return self._parser.num_held

    def push(self, piece: str) -> list[MessageDelta]:
        return self._without_reasoning(self._parser.push(piece))

    def flush(self) -> list[MessageDelta]:
        return self._without_reasoning(self._parser.flush())

    @staticmethod
    def _without_reasoning(deltas: list[MessageDelta]) -> list[MessageDelta]:
        return [delta for delta in deltas if not isinstance(delta, ReasoningDelta)]
