"""When texts are searched, and that what is appended late is drafted from as if it were in time."""

import random
from array import array

import pytest

from specdecode_api.boot import NgramBoot
from specdecode_engine.batch.proposals import Proposals
from specdecode_engine.batch.request import FinishReason, Request, SamplingParams
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.speculate.ngram.proposer import (
    LONGEST_INTERVAL,
    FullProposer,
    NgramProposer,
    search_interval,
)
from specdecode_engine.speculate.ngram.sources import (
    NOTHING,
    NUM_MARKS,
    DraftLimits,
    NgramDraft,
    PromptLookup,
    SuffixTree,
    TokenMarks,
    Trie,
)
from specdecode_engine.speculate.ngram.texts import text_maker

SHAPE = DraftShape.chain(4)
NEW_TOKENS = range(1000, 10**6)


def make_proposer(**settings: object) -> NgramProposer:
    return NgramProposer(text_maker(NgramBoot.model_validate(settings), 4))


def start(req_index: int = 1, prompt: tuple[int, ...] = (1, 2, 3)) -> Sequence:
    request = Request(str(req_index), prompt, SamplingParams(0, 10_000, 0.0))
    sequence = Sequence.of(request)
    sequence.req_index = req_index
    return sequence


def search(
    proposer: NgramProposer, *sequences: Sequence, is_probe: bool = False
) -> list[int] | None:
    """Take a step; return how much is found for each sequence, None where nothing is searched."""
    if not proposer.begin_step(sequences, is_probe=is_probe):
        return None
    found = proposer.propose(sequences, {}, SHAPE) or Proposals.nothing(len(sequences))
    return [len(one) for one in found.tokens]


def test_a_search_is_late_by_an_eighth_of_the_steps_without_a_hit_at_most() -> None:
    intervals = [search_interval(misses) for misses in range(1000)]
    assert intervals == sorted(intervals)
    assert intervals[:8] == [1] * 8
    assert intervals[-1] == LONGEST_INTERVAL
    for misses, interval in enumerate(intervals):
        assert interval.bit_count() == 1
        assert interval - 1 <= misses / 8


@pytest.mark.parametrize("source", ["suffix", "prompt", "trie"])
def test_a_text_that_does_not_repeat_is_searched_ever_less_until_it_does(source: str) -> None:
    proposer, sequence = make_proposer(source=source), start()
    searched = []
    for step in range(200):
        sequence.tokens.append(NEW_TOKENS[step])
        found = search(proposer, sequence)
        assert found in ([0], None)
        searched.append(found is not None)
    assert all(searched[:8])
    assert sum(searched) < 45
    assert sum(searched[-4 * LONGEST_INTERVAL :]) == 4
    copied = iter(NEW_TOKENS[100:200])
    late = 0
    while not any(search(proposer, sequence) or ()):
        sequence.tokens.append(next(copied))
        late += 1
    assert late < LONGEST_INTERVAL + 3  # the lookup needs a match of three tokens
    for _ in range(20):
        sequence.tokens.append(next(copied))
        assert search(proposer, sequence) == [4]


def test_a_text_of_which_drafts_are_wrong_is_searched_less() -> None:
    proposer, sequence = make_proposer(source="prompt", min_match=1), start()
    found = []
    for step in range(100):
        sequence.tokens += [7, NEW_TOKENS[step], 7]  # what followed 7 never follows it again
        found.append(search(proposer, sequence))
    assert found[1] == [4]
    assert found.count([4]) < 30
    assert found.count(None) > 40


def test_all_texts_are_searched_in_the_same_steps_and_new_ones_at_once() -> None:
    proposer, first = make_proposer(), start(1)
    for step in range(150):
        first.tokens.append(NEW_TOKENS[step])
        search(proposer, first)
    second = start(2, prompt=(5, 6) * 4)
    assert search(proposer, first, second) == [0, 4]
    both = (first, start(3))
    steps = [search(proposer, *both) for _ in range(250)]
    assert sum(step is not None for step in steps[-4 * LONGEST_INTERVAL :]) == 4


def test_probes_search_and_steps_timed_at_start_draft_in_full() -> None:
    proposer, full, sequence = make_proposer(), FullProposer(), start()
    for step in range(100):
        sequence.tokens.append(NEW_TOKENS[step])
        assert search(full, sequence) == [4]
        search(proposer, sequence)
    probes = [search(proposer, sequence, is_probe=True) for _ in range(LONGEST_INTERVAL)]
    assert probes == [[0]] * LONGEST_INTERVAL


def test_answers_that_ended_are_kept_to_their_last_token() -> None:
    proposer, ended = make_proposer(scope="model"), start(1)
    answer = list(NEW_TOKENS[:60])
    for token in answer:
        ended.tokens.append(token)
        search(proposer, ended)
    ended.tokens += [11, 12, 13]
    ended.finish_reason, ended.req_index = FinishReason.STOP, None
    other = start(1, prompt=(*answer[-4:],))
    proposer.begin_step((other,), is_probe=False)
    found = proposer.propose((other,), {}, SHAPE)
    assert found is not None
    assert found.tokens == ([11, 12, 13],)


class _AtOnce:
    """A source that gets every token with the step that decoded it."""

    def __init__(self, source: str) -> None:
        self._text: array[int] = array("i")
        self._source: SuffixTree | Trie | PromptLookup
        if source == "suffix":
            self._source = SuffixTree(6, 1000)
        elif source == "trie":
            self._source = Trie(6, 1000)
        else:
            self._source = PromptLookup(2, 6)

    def append(self, tokens: list[int]) -> None:
        self._text.extend(tokens)
        if isinstance(self._source, SuffixTree):
            self._source.append(self._text, len(tokens))
        elif isinstance(self._source, Trie):
            self._source.insert(self._text, 6 + len(tokens) - 1)

    def draft(self, limits: DraftLimits) -> NgramDraft:
        return self._source.draft(self._text, limits)


@pytest.mark.parametrize("source", ["suffix", "prompt", "trie"])
def test_drafts_are_those_of_a_source_that_gets_every_token_at_once(source: str) -> None:
    settings = {"source": source, "max_depth": 6, "min_match": 2 if source == "prompt" else 1}
    make, rng = (
        text_maker(NgramBoot.model_validate({**settings, "capacity": 1000}), 1),
        random.Random(3),
    )
    drafted = 0
    for vocab in (5, 40, 300, 3 * NUM_MARKS):
        text, expected = make(), _AtOnce(source)
        for _ in range(300):
            tokens = [rng.randrange(vocab) for _ in range(rng.choice((1, 1, 4)))]
            text.append(tokens)
            expected.append(tokens)
            if rng.random() < 0.5:
                limits = DraftLimits(8, 4, 1 if source == "prompt" else rng.choice((1, 3)))
                found = text.draft(limits)
                assert found == expected.draft(limits)
                drafted += found != NOTHING
    assert drafted > 100


def test_marks_know_every_token_that_repeats() -> None:
    rng, marks = random.Random(4), TokenMarks()
    text: array[int] = array("i")
    assert not marks.is_repeated(text)
    seen: set[int] = set()
    new = taken_for_others = 0
    for _ in range(2000):
        tokens = [rng.randrange(4 * NUM_MARKS) for _ in range(rng.choice((1, 2)))]
        text.extend(tokens)
        before = seen | set(tokens[:-1])
        if tokens[-1] in before:
            assert marks.is_repeated(text)
        else:
            new += 1
            taken_for_others += marks.is_repeated(text)
        assert marks.is_repeated(text) == marks.is_repeated(text)
        seen |= set(tokens)
    assert taken_for_others < new / 4
