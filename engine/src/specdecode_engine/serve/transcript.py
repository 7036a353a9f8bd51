"""The text of one sequence as its tokens arrive, cut where it stops."""

from dataclasses import dataclass

from specdecode_engine.request import FinishReason, Output, RequestStats, TokenLogprobs
from specdecode_engine.serve.detokenizer import Detokenizer
from specdecode_engine.serve.stops import StopScanner
from specdecode_engine.serve.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of the text with its log-probabilities and where in the text it begins.

    The first token of a prompt that is echoed has no log-probabilities.
    """

    token_id: int
    text_offset: int
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class Delta:
    """What one output adds to one answer."""

    index: int
    text: str
    scored: tuple[ScoredToken, ...]
    finish_reason: FinishReason | None


class Transcript:
    """One answer: its text so far is the sum of its deltas' texts.

    Every token is looked at by itself and in order, so that text, end and count are the same
    however many tokens a round brings.
    """

    def __init__(
        self, index: int, vocabulary: Vocabulary, stops: tuple[str, ...], text_offset: int
    ) -> None:
        self.completion_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.stats = RequestStats()
        self._index = index
        self._detokenizer = Detokenizer(vocabulary)
        self._scanner = StopScanner(stops)
        self._text_offset = text_offset

    def push(self, output: Output) -> Delta:
        """Take the core's next output."""
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
                record = output.logprobs[position]
                scored.append(ScoredToken(token_id, self._text_offset, record))
            is_stopped = self._read(self._detokenizer.push(token_id), texts)
            if is_stopped:
                break
        if output.finish_reason is not None and not is_stopped:
            is_stopped = self._read(self._detokenizer.flush(), texts)
            texts.append(self._scanner.flush())
        self.finish_reason = FinishReason.STOP if is_stopped else output.finish_reason
        return Delta(self._index, "".join(texts), tuple(scored), self.finish_reason)

    def _read(self, piece: str, texts: list[str]) -> bool:
        self._text_offset += len(piece)
        released = self._scanner.push(piece)
        texts.append(released.text)
        return released.is_stopped
