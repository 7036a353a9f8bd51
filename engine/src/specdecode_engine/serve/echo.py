"""A prompt that its answer begins with, scored or not."""

from dataclasses import dataclass
from itertools import accumulate

from specdecode_engine.request import TokenLogprobs
from specdecode_engine.serve.detokenizer import Detokenizer
from specdecode_engine.serve.transcript import Delta, ScoredToken
from specdecode_engine.serve.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Echo:
    """What stands before answer `index`: a text, the client's own where it sent one."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    vocabulary: Vocabulary

    def delta(self) -> Delta:
        """Return the text alone."""
        return Delta(self.index, self.text, (), None)

    def scored_delta(self, logprobs: tuple[TokenLogprobs, ...]) -> Delta:
        """Return the text with its tokens; `logprobs` begin with the second."""
        columns = zip(self.token_ids, self._offsets(), (None, *logprobs), strict=True)
        scored = tuple(ScoredToken(*column) for column in columns)
        return Delta(self.index, self.text, scored, None)

    def _offsets(self) -> list[int]:
        """Say where in the text each token begins.

        Some tokenizers write a space before a text, which is not in it: offsets then begin later.
        """
        detokenizer = Detokenizer(self.vocabulary)
        pieces = [detokenizer.push(token_id) for token_id in self.token_ids]
        written = "".join(pieces)
        missing = len(written) - len(self.text) if written.endswith(self.text) else 0
        starts = accumulate((len(piece) for piece in pieces[:-1]), initial=-missing)
        return [min(max(start, 0), len(self.text)) for start in starts]
