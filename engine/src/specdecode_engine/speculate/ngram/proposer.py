"""Proposes drafts from the texts of the running requests, on the host, before a step's launch."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from operator import is_

from specdecode_engine.batch.proposals import Proposals
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.speculate.ngram.sources import NOTHING, DraftLimits, NgramDraft
from specdecode_engine.speculate.ngram.texts import DraftText

MISSES_PER_STEP, LONGEST_INTERVAL = 8, 16


def search_interval(misses: int) -> int:
    """Return the steps from one search of a text to the next, a power of two.

    So a text that begins to repeat is noticed late by an eighth of the steps before at most.

    Args:
        misses: steps since a draft was right about the next token.
    """
    return min(1 << (1 + misses // MISSES_PER_STEP).bit_length() - 1, LONGEST_INTERVAL)


@dataclass(slots=True)
class RequestText:
    """The text of a running request, and when it is searched."""

    sequence: Sequence
    text: DraftText
    hit_step: int  # the latest step that showed a draft to be right, or the first one
    interval: int = 1  # see `search_interval`
    first_tokens: Items[int] = ()  # of the latest draft, one of which was to be the next token


class NgramProposer:
    """Keeps a text for each running request and drafts after its last token.

    Unlike a `Drafter` it runs no forward, has no KV, and reads tokens of the host. A request in
    which nothing matches gets no tokens. With overlap the caller passes the tokens that the host
    has received but not committed.

    A text of which no draft was right for some steps is searched in every second, fourth, … step
    only (`search_interval`), all texts in the same ones, and after a draft that was right: the
    steps between wait for no tokens and cost what they cost without drafts.

    Args:
        make_text: makes the text of a request that starts, or starts over.
    """

    def __init__(self, make_text: Callable[[], DraftText]) -> None:
        self._make_text = make_text
        self._texts: dict[int, RequestText] = {}  # by request index
        self._batch: tuple[tuple[Sequence, ...], list[RequestText]] = (), []  # the latest searched
        self._interval = 1  # the shortest of its texts, 1 where a draft is to be compared
        self._steps = 0
        self._phase = 0  # texts whose interval divides it are searched in the present step

    def begin_step(self, sequences: tuple[Sequence, ...], *, is_probe: bool) -> bool:
        """Count a step with draft steps; return whether the text of any sequence is searched.

        Args:
            sequences: that decode.
            is_probe: whether the step is to show what drafts are worth; it searches all texts.
        """
        self._steps += 1
        self._phase = 0 if is_probe else self._steps
        return not self._phase & (self._interval - 1) or not self._is_searched(sequences)

    def propose(
        self,
        sequences: tuple[Sequence, ...],
        received: Mapping[int, tuple[int, ...]],
        shape: DraftShape,
    ) -> Proposals | None:
        """Draft after each sequence, within `shape` and its own limits; None: nothing is found.

        Args:
            sequences: that decode.
            received: tokens after those of a sequence, by its request index.
        """
        if not self._is_searched(sequences):
            self._close_ended()
            self._batch = sequences, [self._text_of(sequence) for sequence in sequences]
        texts = self._batch[1]
        found = [self._propose_one(one, received, shape) for one in texts]
        self._interval = min([1 if one.first_tokens else one.interval for one in texts])
        tokens, parents = zip(*found, strict=True)
        return Proposals(tokens, parents) if any(tokens) else None

    def _is_searched(self, sequences: tuple[Sequence, ...]) -> bool:
        """Return whether a batch is the latest one that was searched."""
        latest = self._batch[0]
        return len(sequences) == len(latest) and all(map(is_, sequences, latest))

    def _text_of(self, sequence: Sequence) -> RequestText:
        req_index = sequence.req_index
        assert req_index is not None
        one = self._texts.get(req_index)
        if one is None or one.sequence is not sequence:
            one = self._texts[req_index] = RequestText(sequence, self._make_text(), self._steps)
        return one

    def _propose_one(
        self, one: RequestText, received: Mapping[int, tuple[int, ...]], shape: DraftShape
    ) -> NgramDraft:
        is_due = not self._phase & (one.interval - 1)
        if not is_due and not one.first_tokens:
            return NOTHING
        sequence, text = one.sequence, one.text
        assert sequence.req_index is not None
        new = received.get(sequence.req_index, ())
        known, num_tokens = len(text), len(sequence.tokens)
        # What was received in the step before may be committed by now.
        missing = [*sequence.tokens[known:], *new[max(known - num_tokens, 0) :]]
        if is_hit := bool(missing) and missing[0] in one.first_tokens:
            one.hit_step = self._steps
        one.first_tokens, one.interval = (), search_interval(self._steps - one.hit_step)
        # The token after the draft is the target's own.
        room = sequence.total_limit - num_tokens - len(new) - 1
        depth = min(sequence.allowed_steps(shape.num_steps), room)
        if depth < 1 or not (is_due or is_hit):
            return NOTHING
        if missing:
            text.append(missing)
        draft = text.draft(DraftLimits(shape.num_tokens - 1, depth, shape.topk))
        if draft.tokens:
            one.first_tokens = draft.first_tokens()
        return draft

    def _close_ended(self) -> None:
        """Close the texts of requests that have ended, or have another request index by now."""
        closed = [at for at, one in self._texts.items() if one.sequence.req_index != at]
        for req_index in closed:
            one = self._texts.pop(req_index)
            sequence, text = one.sequence, one.text
            if sequence.finish_reason is not None:
                text.append(sequence.tokens[len(text) :])
                text.close(len(sequence.request.prompt_ids))


class FullProposer(NgramProposer):
    """Proposes as many tokens as fit for every request: what a step costs at most.

    It measures steps before any text is known.
    """

    def __init__(self) -> None:
        super().__init__(_MadeUpText)

    def begin_step(self, sequences: tuple[Sequence, ...], *, is_probe: bool) -> bool:
        return super().begin_step(sequences, is_probe=True)


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
