"""The text of one sequence: an echo of its prompt, then its tokens as they arrive."""

from dataclasses import dataclass
from itertools import accumulate

from specdecode_engine.batch.request import FinishReason, Output, RequestStats, TokenLogprobs
from specdecode_engine.serve.text.detokenizer import Detokenizer
from specdecode_engine.serve.text.stop_strings import StopStringScanner
from specdecode_engine.serve.text.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of the text with its log-probabilities and the offset in the text where it begins.

    The first token of a prompt has no log-probabilities.
    """

    token_id: int
    text_offset: int
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that is added to choice `index` of a response."""

    index: int
    text: str
    scored: tuple[ScoredToken, ...]
    finish_reason: FinishReason | None


class OutputProcessor:
    """Turns the outputs of one sequence into deltas, whose texts join to the text of the choice.

    Tokens are processed one at a time and in order, so that text, end and token count do not
    depend on how many tokens a step adds.

    Args:
        index: index of the choice in the response.
        vocabulary: the model's vocabulary.
        stop: stop strings.
        echo: the prompt's text where the choice begins with it.
        prompt_ids: the prompt's token ids.
    """

    def __init__(
        self,
        index: int,
        vocabulary: Vocabulary,
        stop: tuple[str, ...] = (),
        echo: str = "",
        prompt_ids: tuple[int, ...] = (),
    ) -> None:
        self.completion_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.stats = RequestStats()
        self.echo = echo
        self._index = index
        self._vocabulary = vocabulary
        self._prompt_ids = prompt_ids
        self._detokenizer = Detokenizer(vocabulary)
        self._scanner = StopStringScanner(stop) if stop else None
        self._text_offset = len(echo)

    def echo_delta(self, logprobs: tuple[TokenLogprobs, ...] | None = None) -> Delta:
        """Return the echo of the prompt; `logprobs`, where given, begin with its second token."""
        scored: tuple[ScoredToken, ...] = ()
        if logprobs is not None:
            columns = zip(self._prompt_ids, self._prompt_offsets(), (None, *logprobs), strict=True)
            scored = tuple(ScoredToken(*column) for column in columns)
        return Delta(self._index, self.echo, scored, None)

    def push(self, output: Output) -> Delta:
        """Process the next output of the engine."""
        self.stats = output.stats
        texts: list[str] = []
        scored: list[ScoredToken] = []
        is_stopped = False
        for position, token_id in enumerate(output.token_ids):
            self.completion_tokens += 1
            is_last = position == len(output.token_ids) - 1
            if is_last and output.stop_token_id is not None:
                break
            if output.logprobs is not None:
                logprobs = output.logprobs[position]
                scored.append(ScoredToken(token_id, self._text_offset, logprobs))
            is_stopped = self._append(self._detokenizer.push(token_id), texts)
            if is_stopped:
                break
        if output.finish_reason is not None and not is_stopped:
            is_stopped = self._append(self._detokenizer.flush(), texts)
            if self._scanner is not None:
                texts.append(self._scanner.flush())
        self.finish_reason = FinishReason.STOP if is_stopped else output.finish_reason
        return Delta(self._index, "".join(texts), tuple(scored), self.finish_reason)

    def _append(self, piece: str, texts: list[str]) -> bool:
        """Add a piece of text to `texts`; return whether a stop string ends the text in it."""
        self._text_offset += len(piece)
        if self._scanner is None:
            texts.append(piece)
            return False
        texts.append(self._scanner.push(piece))
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
