"""Accept lengths that the lossless suite reports are those of cases that drafted."""

from dataclasses import replace

from checks.lossless.cases import Material, draw_case
from checks.lossless.comparison import Tally
from specdecode_engine.stats.counters import DecodeTotals

MATERIAL = Material(prompts=((1, 2, 3),), vocab=50)


def test_accept_lengths_leave_out_cases_that_drafted_nothing() -> None:
    tally = Tally()
    case = replace(draw_case(0, 1, MATERIAL), family="llama", algorithm="EAGLE")
    other = replace(case, algorithm="NGRAM")
    drafted = DecodeTotals(request_steps=4, drafted_tokens=8, emitted_tokens=10, verified_tokens=6)
    tally.count_drafts(case, drafted)
    tally.count_drafts(other, replace(drafted, emitted_tokens=6))
    tally.count_drafts(other, DecodeTotals(request_steps=100, emitted_tokens=100))
    assert (tally.cases, tally.drafting_cases) == (3, 2)
    assert tally.accept_lengths() == {
        "algorithm=EAGLE": 2.5,
        "algorithm=NGRAM": 1.5,
        "all": 2.0,
        "family=llama": 2.0,
    }
    assert (tally.drafted, tally.verified) == (16, 12)
