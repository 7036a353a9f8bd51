"""Verdicts in turns: from pairs only, except for what no load explains."""

import random
from dataclasses import replace

import pytest

from specdecode_operator.judge import effects, judge
from specdecode_operator.judge.effects import PairEffects, decode_effects
from specdecode_operator.judge.evidence import Role, Stratum
from specdecode_operator.judge.guard import Aim, Guard
from specdecode_operator.judge.judge import judge_turns
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.judge.trial_evidence import (
    ROLES,
    Cell,
    RoleRow,
    Tails,
    TurnEvidence,
    add_counts,
)

STRATA = (Stratum(8, "greedy", "free", "short"), Stratum(16, "greedy", "free", "short"))
GUARD = Guard()


def counts(
    old_time=1.0, new_time=1.0, accept=(3.0, 3.0), buckets=(1.0, 1.0), first=1.0, load=1.0, **rows
):
    """One pair: 200 requests of 1000 tokens in each role; `buckets`: share in the lower bucket.

    `load`: requests of the candidate for each of the baseline.
    """
    numbers = []
    for role in ROLES:
        is_new = role is Role.CANDIDATE
        own = rows if is_new else {}
        first_us = 30_000_000 * (first if is_new else 1.0)
        row = RoleRow(200, round(first_us), 10, 200_000, 10_000, 200)
        numbers += list(row._replace(**own))
    for index in range(2):
        for role in ROLES:
            at = ROLES.index(role)
            share = buckets[at] if index == 0 else 1.0 - buckets[at]
            time = (old_time, new_time)[at] * (1.0 if index == 0 else 1.3)
            requests = 200 * share * (1.0, load)[at]
            tokens = 1000 * requests
            numbers += Cell(
                round(requests), round(tokens), round(4_000 * tokens * time),
                round(tokens / accept[at]),
            )  # fmt: skip
    return tuple(numbers)


def trial(pairs, **fields):
    return TurnEvidence(strata=STRATA, tails=Tails(1, 1), pairs=tuple(pairs), **fields)


def noisy(effect, count=30, noise=0.03, seed=1, **others):
    draw = random.Random(seed)
    return [
        counts(new_time=effect * (1.0 + draw.gauss(0.0, noise)), **others) for _ in range(count)
    ]


def verdict(pairs, guard=GUARD, elapsed_s=3600.0, **fields):
    found = judge_turns(trial(pairs, **fields), guard, elapsed_s)
    return found.verdict, found.reason


def test_a_faster_candidate_is_promoted_with_an_interval_around_its_gain():
    found = judge_turns(trial(noisy(0.93)), GUARD, 3600.0)
    assert (found.verdict, found.reason) == (Verdict.PROMOTE, "Faster")
    assert found.gain is not None
    assert found.gain.lower < 0.07 < found.gain.upper
    assert found.pairs == 30


def test_a_slower_candidate_is_rolled_back():
    assert verdict(noisy(1.05)) == (Verdict.ROLL_BACK, "Slower")


def test_an_equal_edit_is_promoted_and_an_equal_recommendation_is_not():
    pairs = noisy(1.0, 50, 0.02)
    assert verdict(pairs, Guard(aim=Aim.NO_LOSS)) == (Verdict.PROMOTE, "NotSlower")
    assert verdict(pairs) == (Verdict.INCONCLUSIVE, "GainTooSmall")


@pytest.mark.parametrize("time", [0.5, 1.2, 1.39, 1.9])
def test_one_pair_decides_nothing_that_load_explains(time):
    assert verdict([counts(new_time=time)], elapsed_s=300.0)[0] is Verdict.CONTINUE


def test_load_that_fills_larger_batches_in_one_turn_is_no_loss():
    """The reproduction of the review: load ×3 in the candidate's turn, equal arms."""
    pair = counts(buckets=(1.0, 0.05))
    assert verdict([pair], elapsed_s=300.0)[0] is Verdict.CONTINUE


def test_a_factor_of_two_at_equal_batch_sizes_is_rolled_back_after_three_pairs():
    slow = [counts(new_time=2.6)] * 3
    assert verdict(slow, elapsed_s=300.0) == (Verdict.ROLL_BACK, "HeavyLoss")
    assert verdict(slow[:2], elapsed_s=300.0)[0] is Verdict.CONTINUE


@pytest.mark.parametrize("disturbed", [1, 2])
def test_another_process_on_the_machine_in_the_turn_of_the_candidate_is_no_heavy_loss(disturbed):
    """Equal arms on a machine whose processors another process took during `disturbed` turns."""
    pairs = [counts(new_time=6.0)] * disturbed + [counts(new_time=1.0)] * (4 - disturbed)
    for number in range(1, len(pairs) + 1):
        assert verdict(pairs[:number], elapsed_s=300.0)[0] is Verdict.CONTINUE


def test_a_draft_that_does_not_fit_is_found_in_the_second_pair_of_turns():
    broken = counts(new_time=2.3, accept=(3.0, 1.1))
    assert verdict([broken], elapsed_s=25.0)[0] is Verdict.CONTINUE
    found = verdict([broken], open=broken, elapsed_s=25.0)
    assert found == (Verdict.ROLL_BACK, "AcceptLengthFell")
    by_restart = replace(GUARD, fallen_pairs=1)
    assert verdict([], by_restart, 25.0, open=broken) == (Verdict.ROLL_BACK, "AcceptLengthFell")


def test_by_restart_a_fall_must_go_below_what_the_baseline_answered_at_other_times():
    """One pair cannot distinguish other content from another draft; hours of the baseline can."""
    by_restart = replace(GUARD, fallen_pairs=1)
    broken = counts(new_time=2.3, accept=(4.2, 1.4))
    alarm = (Verdict.ROLL_BACK, "AcceptLengthFell")
    assert verdict([], by_restart, 25.0, open=broken, before=counts(accept=(4.2, 1.0))) == alarm
    assert verdict([], by_restart, 25.0, open=broken, before=counts(accept=(2.4, 1.0))) == alarm
    other = verdict([], by_restart, 25.0, open=broken, before=counts(accept=(1.6, 1.0)))
    assert other[0] is Verdict.CONTINUE
    unknown = verdict([], by_restart, 25.0, open=broken, before=(0,) * len(broken))
    assert unknown == alarm


def test_content_that_changes_within_a_pair_is_no_draft_that_does_not_fit():
    """Equal arms; a third of the tokens per step in the candidate's turn of one pair, or of two."""
    changed, same = counts(new_time=2.3, accept=(4.2, 1.4)), counts(new_time=1.0)
    for pairs in ([changed, same], [same, changed], [changed, changed, same]):
        assert verdict(pairs, elapsed_s=300.0)[0] is Verdict.CONTINUE


def test_a_broken_draft_is_found_although_its_waiting_requests_fill_the_next_batch_bucket():
    broken = counts(new_time=1.8, accept=(3.0, 1.1), buckets=(1.0, 0.0))
    found = judge_turns(trial([broken], open=broken), GUARD, 25.0)
    assert (found.verdict, found.reason) == (Verdict.ROLL_BACK, "AcceptLengthFell")
    assert "at equal load" in found.message


def test_a_draft_that_its_engines_left_out_is_broken_even_if_decoding_is_no_slower():
    left_out = counts(new_time=0.9, accept=(3.0, 1.0))
    assert verdict([left_out], open=left_out, elapsed_s=25.0)[0] is Verdict.CONTINUE
    found = counts(new_time=0.9, accept=(3.0, 1.0), unfit_drafts=1)
    judged = judge_turns(trial([found], open=found), GUARD, 25.0)
    assert (judged.verdict, judged.reason) == (Verdict.ROLL_BACK, "AcceptLengthFell")
    assert "its engines decode without it" in judged.message


def test_an_unfit_draft_that_both_arms_have_is_no_reason():
    pair = counts(accept=(1.0, 1.0), unfit_drafts=1)
    assert verdict([pair], open=pair, elapsed_s=25.0)[0] is Verdict.CONTINUE


def test_a_table_that_drafts_less_in_larger_batches_is_no_broken_draft_under_more_load():
    """Equal arms; three times the load in the candidate's turn, where the table does not draft."""
    pair = counts(new_time=1.8, accept=(3.0, 1.1), buckets=(1.0, 0.0), load=3.0)
    assert verdict([pair], elapsed_s=300.0)[0] is Verdict.CONTINUE
    cheaper = counts(new_time=1.1, accept=(3.0, 1.1), buckets=(1.0, 0.0))  # at the same load
    assert verdict([cheaper], elapsed_s=300.0)[0] is Verdict.CONTINUE


def test_content_that_is_harder_in_one_turn_is_no_broken_draft():
    pair = counts(new_time=1.75, accept=(4.2, 2.4))
    assert verdict([pair], elapsed_s=300.0)[0] is Verdict.CONTINUE


def test_a_gain_that_costs_time_to_first_token_is_not_promoted():
    assert verdict(noisy(0.9, first=1.5)) == (Verdict.ROLL_BACK, "FirstTokenSlower")
    slightly = judge_turns(trial(noisy(0.9, first=1.09)), GUARD, 3600.0)
    assert slightly.verdict is Verdict.PROMOTE
    assert slightly.first_token is not None
    assert slightly.first_token.estimate == pytest.approx(-0.09, abs=0.01)


def test_a_gain_that_waits_for_the_time_to_first_token_names_it():
    draw = random.Random(3)
    pairs = [counts(new_time=0.9, first=draw.choice((0.3, 3.0))) for _ in range(16)]
    found = judge_turns(trial(pairs), GUARD, 3600.0)
    assert (found.verdict, found.reason) == (Verdict.CONTINUE, "NotClear")
    assert found.message.startswith("decode time per token -10.0% (")
    assert ", time to first token " in found.message
    assert found.message.endswith("), at most +10% allowed: more requests are needed")


@pytest.mark.parametrize(
    ("row", "reason"),
    [({"restarts": 3}, "RestartsRail"),
     ({"failed": 100, "answered": 100}, "FailuresRail")],
)  # fmt: skip
def test_certain_failures_need_no_complete_pair(row, reason):
    assert verdict([], open=counts(**row), elapsed_s=60.0) == (Verdict.ROLL_BACK, reason)


def test_failures_of_an_abandoned_pair_count():
    abandoned = add_counts(counts(failed=60, answered=0), counts(failed=60, answered=0))
    assert verdict([], abandoned=abandoned, elapsed_s=60.0)[1] == "FailuresRail"


def test_a_slow_tail_is_shown_by_pairs_only():
    tail = {"inter_tokens_slow": 40_000}
    few, many = noisy(0.95, 4, **tail), noisy(0.95, 20, **tail)
    assert verdict(few, elapsed_s=600.0)[0] is Verdict.CONTINUE
    assert verdict(many) == (Verdict.ROLL_BACK, "InterTokenRail")


def test_what_is_kept_of_earlier_looks_changes_no_judgement():
    """Every look at a trial, in order, and each of them again with nothing kept."""
    pairs = noisy(0.97, 40, 0.05, first=1.02, inter_tokens_slow=12_000)
    pairs[7] = counts(buckets=(1.0, 0.2))
    pairs[9] = ()

    def judged(count):
        return judge_turns(trial(pairs[:count], open=pairs[count]), GUARD, 60.0 * count)

    in_order = [judged(count) for count in range(40)]
    for count, found in enumerate(in_order):
        for kept in (effects._decode_effect, effects._first_token_effect, judge._interval):
            kept.cache_clear()
        assert judged(count) == found
    assert in_order[-1].gain is not None


def test_the_part_that_load_explains_comes_from_earlier_pairs():
    found = decode_effects(trial([counts(buckets=(1.0, share)) for share in (0.9, 0.5, 0.7, 0.2)]))
    for count in range(1, 5):
        fewer = PairEffects(found.pairs[:count], found.slope)
        assert fewer.shifted(0.01) == found.shifted(0.01)[:count]


def test_a_promotion_waits_for_its_floors_and_ends_with_its_time():
    assert verdict(noisy(0.9, 12), elapsed_s=300.0) == (Verdict.CONTINUE, "TooSoon")
    assert verdict(noisy(0.9, 3))[1] == "TooFewPairs"
    assert verdict([], elapsed_s=10.0)[0] is Verdict.NO_DATA
    assert verdict(noisy(1.0, 12, 0.3), elapsed_s=7200.0) == (Verdict.INCONCLUSIVE, "OutOfTime")
