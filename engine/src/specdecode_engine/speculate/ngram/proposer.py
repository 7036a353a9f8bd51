"""Proposes drafts from the texts of the running requests, on the host, before a step's launch."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items

from specdecode_engine.batch.proposals import Proposals
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.speculate.ngram.sources import NOTHING, DraftLimits, NgramDraft
from specdecode_engine.speculate.ngram.texts import DraftText


class NgramProposer:
    """Keeps a text for each running request and drafts after its last token.

    Unlike a `Drafter` it runs no forward, has no KV, and reads tokens of the host. A request in
    which nothing matches gets no tokens. With overlap the caller passes the tokens that the host
    has received but not committed.

    Args:
        make_text: makes the text of a request that starts, or starts over.
    """

    def __init__(self, make_text: Callable[[], DraftText]) -> None:
        self._make_text = make_text
        self._texts: dict[int, tuple[Sequence, DraftText]] = {}  # by request index

    def propose(
        self,
        sequences: Items[Sequence],
        received: Mapping[int, tuple[int, ...]],
        shape: DraftShape,
    ) -> Proposals:
        """Draft after each sequence, within `shape` and the sequence's own limits.

        Args:
            sequences: that decode.
            received: tokens after those of a sequence, by its request index.
        """
        self._close_ended()
        found = [self._propose_one(sequence, received, shape) for sequence in sequences]
        return Proposals(
            tuple([one.tokens for one in found]), tuple([one.parents for one in found])
        )

    def _propose_one(
        self, sequence: Sequence, received: Mapping[int, tuple[int, ...]], shape: DraftShape
    ) -> NgramDraft:
        req_index = sequence.req_index
        assert req_index is not None
        new = received.get(req_index, ())
        text = self._text_of(sequence, req_index)
        known, num_tokens = len(text), len(sequence.tokens)
        # What was received in the step before may be committed by now.
        missing = [*sequence.tokens[known:], *new[max(known - num_tokens, 0) :]]
        if missing:
            text.append(missing)
        # The token after the draft is the target's own.
        room = sequence.total_limit - num_tokens - len(new) - 1
        depth = min(sequence.allowed_steps(shape.num_steps), room)
        if depth < 1:
            return NOTHING
        return text.draft(DraftLimits(shape.num_tokens - 1, depth, shape.topk))

    def _text_of(self, sequence: Sequence, req_index: int) -> DraftText:
        owner, text = self._texts.get(req_index, (None, None))
        if owner is not sequence or text is None:
            text = self._make_text()
            self._texts[req_index] = sequence, text
        return text

    def _close_ended(self) -> None:
        """Close the texts of requests that have ended, or have another request index by now."""
        closed = [at for at, (sequence, _) in self._texts.items() if sequence.req_index != at]
        for req_index in closed:
            sequence, text = self._texts.pop(req_index)
            if sequence.finish_reason is not None:
                text.close(len(sequence.request.prompt_ids))


class FullProposer(NgramProposer):
    """Proposes as many tokens as fit for every request: what a step costs at most.

    It measures steps before any text is known.
    """

    def __init__(self) -> None:
        super().__init__(_MadeUpText)


class _MadeUpText:
    """Drafts chains after the root, each of one token of its own."""

    def __init__(self) -> None:
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, tokens: list[int]) -> None:
        self._length += len(tokens)

    def draft(self, limits: DraftLimits) -> NgramDraft:
        most = min(limits.max_tokens, limits.max_children * limits.max_depth)
        chains, places = zip(*[divmod(node, limits.max_depth) for node in range(most)], strict=True)
        parents = [node if place else 0 for node, place in enumerate(places)]
        return NgramDraft(list(chains), parents)

    def close(self, prompt_tokens: int) -> None:
        """Nothing is kept."""
