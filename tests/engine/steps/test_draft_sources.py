"""Which source drafts for a request that verifies a part of its draft."""

from specdecode_engine.adaptive.draft_source import DraftSources, RequestTrials, Trials
from specdecode_engine.batch.proposals import Proposals
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.steps.draft_sources import choose_sources


def test_sources_are_compared_by_the_positions_that_are_verified() -> None:
    sources, own = DraftSources(), RequestTrials()
    for _ in range(40):
        sources.learn(own, Trials(10, 7), Trials(10, 8))
    sequence = Sequence.of(Request("r", (1, 2), SamplingParams(0, 8, 0.0)))
    sequence.source_trials = own
    found = Proposals(tokens=([5],), parents=([0],))
    shape = DraftShape.chain(5)
    whole = choose_sources(sources, (sequence,), found, shape, (6,))
    assert whole.drafts == (True,)  # five positions of the model to one of NGRAM
    first = choose_sources(sources, (sequence,), found, shape, (2,))
    assert first.drafts == (False,)  # one position of either
