"""The text of one sequence: an echo of its prompt, then its tokens as they arrive.

Tokens become text without incomplete characters, and stop strings are found across tokens.
"""

import codecs
from dataclasses import dataclass
from itertools import accumulate

from specdecode_engine.batch.request import FinishReason, Output, TokenLogprobs
from specdecode_engine.serve.text.tokenizer import Vocabulary

_utf8 = codecs.getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of the text with its log-probabilities and the offset in the text where it begins.

    The first token of a prompt has no log-probabilities.
    """

    token_id: int
    text_offset: int
    logprobs: TokenLogprobs | None


class OutputProcessor:
    """One choice of a response: turns the outputs of its sequence into text.

    `text` and `scored` are what was added since `clear`. Tokens are processed one at a time and in
    order, so that text, end and token count do not depend on how many tokens a step adds. `echo` is
    the prompt's text where the choice begins with it.
    """

    def __init__(
        self,
        index: int,
        vocabulary: Vocabulary,
        stop: tuple[str, ...] = (),
        echo: str = "",
        prompt_ids: tuple[int, ...] = (),
    ) -> None:
        self.index = index
        self.scored: list[ScoredToken] = []
        self.finish_reason: FinishReason | None = None
        self.grammar_fault: str | None = None
        self.completion_tokens = 0
        self.decode_steps = self.drafted = self.accepted = self.emitted = 0  # of decode steps
        self.echo = echo
        self._vocabulary = vocabulary
        self._prompt_ids = prompt_ids
        self._detokenizer = Detokenizer(vocabulary)
        self._scanner = StopStringScanner(stop) if stop else None
        self._text_offset = len(echo)
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def clear(self) -> None:
        """Drop text and log-probabilities: they were sent."""
        self._pieces = []
        self.scored = []

    def add_echo(self, logprobs: tuple[TokenLogprobs, ...] | None = None) -> None:
        """Add the echo of the prompt; `logprobs`, where given, begin with its second token."""
        self._pieces.append(self.echo)
        if logprobs is not None:
            columns = zip(self._prompt_ids, self._prompt_offsets(), (None, *logprobs), strict=True)
            self.scored += (ScoredToken(*column) for column in columns)

    @property
    def error_field(self) -> dict[str, object]:
        """The field `error` of a choice whose grammar failed, as `errors.HttpError` writes it."""
        if self.grammar_fault is None:
            return {}
        message = f"the grammar could not be followed: {self.grammar_fault}; simplify it"
        return {"error": {"message": message, "type": "server_error", "code": "grammar_failed"}}

    def push(self, output: Output) -> None:
        """Process the next output of the engine."""
        self.grammar_fault = output.grammar_fault
        self.decode_steps += output.decode_steps
        self.drafted += output.drafted
        self.accepted += output.accepted
        self.emitted += output.decode_steps * len(output.token_ids)
        is_stopped = False
        for position, token_id in enumerate(output.token_ids):
            self.completion_tokens += 1
            is_last = position == len(output.token_ids) - 1
            if is_last and output.stop_token_id is not None:
                break
            if output.logprobs is not None:
                logprobs = output.logprobs[position]
                self.scored.append(ScoredToken(token_id, self._text_offset, logprobs))
            is_stopped = self._append(self._detokenizer.push(token_id))
            if is_stopped:
                break
        if output.finish_reason is not None and not is_stopped:
            is_stopped = self._append(self._detokenizer.flush())
            if self._scanner is not None:
                self._pieces.append(self._scanner.flush())
        self.finish_reason = FinishReason.STOP if is_stopped else output.finish_reason

    def _append(self, piece: str) -> bool:
        """Add a piece of text; return whether a stop string ends the text in it."""
        self._text_offset += len(piece)
        if self._scanner is None:
            self._pieces.append(piece)
            return False
        self._pieces.append(self._scanner.push(piece))
        return self._scanner.is_stopped

    def _prompt_offsets(self) -> list[int]:
        """Return the offset in the echo where each token of the prompt begins.

        Some tokenizers decode a space before a text, which the text does not contain: the offsets
        are shifted by it.
        """
        detokenizer = Detokenizer(self._vocabulary)
        pieces = [detokenizer.push(token_id) for token_id in self._prompt_ids]
        decoded = "".join(pieces)
        surplus = len(decoded) - len(self.echo) if decoded.endswith(self.echo) else 0
        starts = accumulate((len(piece) for piece in pieces[:-1]), initial=-surplus)
        return [min(max(start, 0), len(self.echo)) for start in starts]


class Detokenizer:
    """The text of one sequence so far.

    The pieces of all tokens, then that of `flush`, join to the whole text. Bytes that are not
    valid UTF-8 become U+FFFD as soon as that is certain.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = _utf8(errors="replace")

    def push(self, token_id: int) -> str:
        """Return the characters that this token completes."""
        return self._decoder.decode(self._vocabulary.text_bytes(token_id))

    def flush(self) -> str:
        """Return the replacement of an incomplete character at the end, if there is one."""
        return self._decoder.decode(b"", final=True)


class StopStringScanner:
    """Searches a text that arrives in pieces for the earliest stop string.

    Holds back the longest end of the text that could still become a stop string. `is_stopped` is
    set once a stop string ended the text.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        assert all(stop), "an empty stop string would end every text"
        self.is_stopped = False
        self._stop = stop
        self._held = ""

    def push(self, piece: str) -> str:
        """Add the next piece; return the text that can be released now."""
        text = self._held + piece
        starts = [start for stop in self._stop if (start := text.find(stop)) >= 0]
        if starts:
            self.is_stopped = True
            self._held = ""
            return text[: min(starts)]
        released = len(text) - max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[released:]
        return text[:released]

    def flush(self) -> str:
        """Release the text that is held back: the text has ended without a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest proper prefix of `stop` that the text ends with."""
    lengths = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)
