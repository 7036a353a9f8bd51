"""The comparison by strata: what a plain ratio would get wrong."""

import math

import pytest

from specdecode_operator.judge.evidence import ArmEvidence
from specdecode_operator.judge.ratio import log_ratio, seconds_per_token
from specdecode_operator.judge.standardised import compare
from specdecode_operator.judge.stratified import contrast

FAST = [(30.0, 10.0, 0.1), (60.0, 20.0, 0.2), (30.0, 10.0, 0.12)]
SLOW = [(30.0, 10.0, 0.4), (60.0, 20.0, 0.8), (30.0, 10.0, 0.48)]


def test_by_hand_with_two_strata_weighted_by_their_work(sums, strata):
    one, other = strata
    old = ArmEvidence({one: sums(FAST * 10), other: sums(SLOW * 10)})
    new = ArmEvidence(
        {one: sums(FAST * 10), other: sums([(t, r, 1.1 * s) for t, r, s in SLOW] * 10)}
    )
    found = contrast(old, new, seconds_per_token, 20)
    # Seconds of both arms: 8.4 of the fast stratum, 16.8 + 18.48 of the slow one.
    share = 35.28 / (8.4 + 35.28)
    assert found.log_ratio is not None
    assert found.log_ratio.value == pytest.approx(share * math.log(1.1))
    own = log_ratio(seconds_per_token(sums(SLOW * 10)))
    fast = log_ratio(seconds_per_token(sums(FAST * 10)))
    assert own is not None
    assert fast is not None
    expected = share**2 * 2 * own.variance + (1 - share) ** 2 * 2 * fast.variance
    assert found.log_ratio.variance == pytest.approx(expected, rel=1e-6)
    assert found.coverage == 1.0


def test_a_shift_of_the_mix_is_no_effect(sums, strata):
    one, other = strata
    old = ArmEvidence({one: sums(FAST * 50), other: sums(SLOW * 10)})
    new = ArmEvidence({one: sums(FAST * 10), other: sums(SLOW * 50)})
    plain_new = log_ratio(seconds_per_token(sums(FAST * 10 + SLOW * 50)))
    plain_old = log_ratio(seconds_per_token(sums(FAST * 50 + SLOW * 10)))
    assert plain_new is not None
    assert plain_old is not None
    assert plain_new.value - plain_old.value > 0.5
    found = contrast(old, new, seconds_per_token, 20).log_ratio
    assert found is not None
    assert found.value == pytest.approx(0.0)


def test_thin_strata_are_left_out_and_lower_the_coverage(sums, strata):
    one, other = strata
    old = ArmEvidence({one: sums(FAST * 10), other: sums(SLOW)})
    new = ArmEvidence({one: sums(FAST * 10)})
    found = contrast(old, new, seconds_per_token, 20)
    assert [cell.log_ratio is not None for cell in found.cells] == [True, False]
    assert found.coverage == pytest.approx(8.4 / (8.4 + 1.68))
    assert contrast(old, ArmEvidence(), seconds_per_token, 20).coverage == 0.0


def test_a_candidate_cannot_hide_in_batches_of_its_own(sums, strata):
    one, _ = strata
    slower = [(t, r, 3 * s) for t, r, s in FAST]
    old = ArmEvidence({one: sums(FAST * 10)})
    new = ArmEvidence({type(one)(32, "greedy", "free", "short"): sums(slower * 10)})
    assert contrast(old, new, seconds_per_token, 20).log_ratio is None
    compared = compare(old, new, seconds_per_token)
    assert compared is not None
    assert compared.value == pytest.approx(math.log(3))


def test_standardised_arms_by_hand(sums, strata):
    one, other = strata
    old = ArmEvidence({one: sums(FAST), other: sums(SLOW)})
    new = ArmEvidence({one: sums(FAST), other: sums(SLOW * 3)})
    # The same rates and another mix: seen is what is expected, in both arms.
    compared = compare(old, new, seconds_per_token)
    assert compared is not None
    assert compared.value == pytest.approx(0.0)
    assert compare(old, ArmEvidence(), seconds_per_token) is None
