"""Reasoning between tags at the beginning of a text: DeepSeek-R1, Qwen3, GLM-4.5, Magistral, ….

Facts: chat templates of these models, and vLLM's reasoning parsers of the same names. Tags later in
the text are content: a user may ask about them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from specdecode_engine.serve.parsers.answer import AnswerTags
from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.deepseek import KIMI_TOKENS
from specdecode_engine.serve.parsers.message import (
    ContentDelta,
    MessageDelta,
    ReasoningDelta,
    ReasoningParser,
)
from specdecode_engine.serve.parsers.thought_calls import CallFinder

MAX_LEADING_SPACE = 64
"""White space before the opening tag; more of it is content."""


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The tags of a family; they are special tokens in some vocabularies and text in others.

    `label` is what a model writes after the opening tag before the reasoning. `answer` are the tags
    around what follows the reasoning.
    """

    start: str
    end: str
    label: str = ""
    answer: AnswerTags | None = None

    def are_open(self, prompt: str, continued: str = "") -> bool:
        """Whether a prompt ends inside reasoning, so that the text begins there.

        Only the end of the prompt counts, since messages may contain tags, and the assistant's
        message that the text continues.
        """
        is_opened = continued.rfind(self.start) > continued.rfind(self.end)
        openings = self.start, (self.start + self.label).rstrip()
        return is_opened or prompt.rstrip().endswith(openings)


THINK = ReasoningTags("<think>", "</think>")
COHERE = ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>")
REASONING_TAGS: Mapping[str, ReasoningTags] = {
    "apertus": ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>"),
    "cohere_command3": COHERE,
    "cohere_command4": COHERE,
    "deepseek_r1": THINK,
    "ernie45": replace(THINK, answer=AnswerTags("<response>", "</response>")),
    "gemma4": ReasoningTags("<|channel>", "<channel|>", "thought\n"),
    "glm45": THINK,
    "granite": ReasoningTags("Here is my thought process:", "Here is my response:"),
    "hunyuan_a13b": replace(THINK, answer=AnswerTags("<answer>", "</answer>")),
    "hy_v3": THINK,
    "kimi_k2": THINK,
    "minimax_m2": THINK,
    "mistral": ReasoningTags("[THINK]", "[/THINK]"),
    "olmo3": THINK,
    "qwen3": THINK,
    "seed_oss": ReasoningTags("<seed:think>", "</seed:think>"),
}
# Texts that only templates of the family contain.
_EVIDENCE = (
    ("apertus", "<|inner_prefix|>"),
    ("granite", "Here is my thought process:"),
    ("openai_gptoss", "<|channel|>"),
    ("gemma4", "<|channel>"),
    ("mistral", "[THINK]"),
    ("seed_oss", "<seed:think>"),
    ("cohere_command3", "<|START_THINKING|>"),
)


def detect_reasoning_format(template: str) -> str | None:
    """Return the name of the format of reasoning, as vLLM names it; None without reasoning."""
    found = next((name for name, text in _EVIDENCE if text in template), None)
    if found is not None:
        return found
    if "<tool_calls" in template and "<arg_key" in template:
        return "hy_v3"
    if "</think>" not in template and "<think>" not in template:
        return None
    for name, tags in REASONING_TAGS.items():
        if tags.answer is not None and all(tag in template for tag in tags.answer):
            return name
    if "[gMASK]" in template:
        return "glm45"
    if KIMI_TOKENS.calls_begin in template:
        return "kimi_k2"
    return "qwen3" if "<|im_start|>" in template else "deepseek_r1"


class _Part(Enum):
    BEGINNING = auto()  # an opening tag may follow
    REASONING = auto()
    CONTENT = auto()


class TaggedReasoningParser:
    """Separates reasoning from what follows it.

    Line breaks right after a tag and right before the closing one belong to neither part, as chat
    templates write and remove them. From the marker of a call on, reasoning is held back: if it is
    closed later, the marker was text; if it never is, a complete call ends it.

    Args:
        is_open: the prompt ends inside reasoning; a repeated opening tag is then dropped.
        calls: finds calls in reasoning that is not closed; None leaves them in it.
    """

    def __init__(self, tags: ReasoningTags, is_open: bool, calls: CallFinder | None = None) -> None:
        self._tags = tags
        self._calls = calls
        self._markers = Markers(tags.end, *(calls.markers if calls else ()))
        self._undecided: list[str] = []  # reasoning from the marker of a call on
        self._num_undecided = 0
        self._end_of_undecided = ""
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
    def is_undecided(self) -> bool:
        return bool(self._undecided)

    @property
    def num_held(self) -> int:
        if self.is_undecided:
            return self._num_undecided
        return 0 if self.in_reasoning else len(self._held)

    def push(self, piece: str) -> list[MessageDelta]:
        if self.is_undecided:
            return self._read_undecided(piece)
        if self._part is _Part.BEGINNING:
            piece = self._open(self._held + piece)
        if self._part is _Part.REASONING:
            return self._read_reasoning(self._held + piece)
        return self._content(piece) if self._part is _Part.CONTENT else []

    def flush(self) -> list[MessageDelta]:
        held, self._held = self._held, ""
        if self._part is _Part.BEGINNING:
            is_opened = held.lstrip().startswith(self._tags.start)  # and its label is cut short
            self._begin(_Part.REASONING if is_opened else self._unopened)
            held = "" if is_opened else held
        if self.is_undecided:
            return self._decide()
        return self._reasoning(held) if self._part is _Part.REASONING else self._content(held)

    def _open(self, text: str) -> str:
        """Decide how the text begins, if that is certain; return what is not read yet."""
        start, bare = self._tags.start, text.lstrip()
        opening = start + self._tags.label
        is_near = len(text) - len(bare) <= MAX_LEADING_SPACE
        if is_near and opening.startswith(bare) and bare != opening:
            self._held = text
            return ""
        if is_near and bare.startswith(start):
            self._begin(_Part.REASONING)
            return bare.removeprefix(start).removeprefix(self._tags.label)
        self._begin(self._unopened)
        return text

    def _begin(self, part: _Part) -> None:
        self._is_at_start = part is _Part.REASONING
        self._part = part
        self._held = ""

    def _read_reasoning(self, text: str) -> list[MessageDelta]:
        found = self._markers.pattern.search(text)
        if found is None:
            released = len(text) - max(partial_length(text, each) for each in self._markers.texts)
            self._held = text[released:]
            return self._reasoning(text[:released])
        self._held = ""
        if found[0] == self._tags.end:
            return self._close(text, found.start())
        deltas = self._reasoning(text[: found.start()])
        return deltas + self._read_undecided(text[found.start() :])

    def _close(self, text: str, end: int) -> list[MessageDelta]:
        """Read a text whose closing tag begins at `end`."""
        deltas = self._reasoning(text[:end])
        self._part, self._is_at_start = _Part.CONTENT, True
        return deltas + self._content(text[end + len(self._tags.end) :])

    def _read_undecided(self, piece: str) -> list[MessageDelta]:
        """Hold reasoning with the marker of a call back until it is closed."""
        tag, seen = self._tags.end, self._end_of_undecided + piece
        found = seen.find(tag)
        self._undecided.append(piece)
        self._num_undecided += len(piece)
        self._end_of_undecided = seen[max(len(seen) - len(tag) + 1, 0) :]
        if found < 0:
            return []
        text = "".join(self._undecided)
        self._undecided = []
        return self._close(text, len(text) - len(seen) + found)

    def _decide(self) -> list[MessageDelta]:
        """Return the reasoning that was held back, and the content from its first call on."""
        assert self._calls is not None
        text = "".join(self._undecided)
        self._undecided = []
        start = self._calls.find(text)
        if start is None:
            return self._reasoning(text)
        self._part = _Part.CONTENT
        end = len(text) - partial_length(text, self._tags.end)
        return [*self._reasoning(text[:start]), ContentDelta(text[start:end])]

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


class HiddenParts:
    """Leaves out what a parser finds of one kind of part.

    Reasoning with `include_reasoning: false`; content where a message has to consist of calls, of
    which only text that the limit has cut off is not read as a call.
    """

    def __init__(self, parser: ReasoningParser, kind: type[MessageDelta]) -> None:
        self._parser = parser
        self._kind = kind

    @property
    def in_reasoning(self) -> bool:
        return self._parser.in_reasoning

    @property
    def is_undecided(self) -> bool:
        return self._parser.is_undecided

    @property
    def num_held(self) -> int:
        return self._parser.num_held

    def push(self, piece: str) -> list[MessageDelta]:
        return self._shown(self._parser.push(piece))

    def flush(self) -> list[MessageDelta]:
        return self._shown(self._parser.flush())

    def _shown(self, deltas: list[MessageDelta]) -> list[MessageDelta]:
        return [delta for delta in deltas if not isinstance(delta, self._kind)]
