"""Evidence of a trial: sums stay exact, size stays bounded, and documents are checked."""

import json
import random

import pytest

from specdecode_operator.judge.evidence import ArmEvidence, Latencies, RequestSums, Role, Stratum
from specdecode_operator.judge.evidence_document import BadEvidence, from_document, to_document
from specdecode_operator.judge.recording import (
    MAX_BYTES,
    _merge_smallest,
    abandon_pair,
    close_pair,
    close_window,
    compare_with,
    observe_open,
    tail_bound,
)
from specdecode_operator.judge.trial_evidence import (
    CELL,
    MAX_STRATA,
    OTHER,
    ROW,
    PodEvidence,
    TurnEvidence,
    add_counts,
    cell_of,
    columns_of,
    row_of,
)

BOUNDS_S = (0.1, 0.2, 0.4)


def arm(requests=10.0, strata=3, **others):
    """Requests in each of some strata, 50 tokens, 20 steps and a second each."""
    return ArmEvidence(
        strata={
            Stratum(2**index, "greedy", "free", "short", f"label-{index}"): RequestSums(
                requests, 50 * requests, 20 * requests, requests
            )
            for index in range(strata)
        },
        first_token=Latencies(BOUNDS_S, (90.0, 5.0, 4.0, 1.0), 10.5),
        inter_token=Latencies(BOUNDS_S, (90.0, 5.0, 4.0, 1.0), 10.5),
        answered_requests=requests,
        pods=2,
        **others,
    )


def busy_arm(draw, strata):
    """An arm whose strata hold numbers as large as an hour of a busy pod brings."""
    sums = [RequestSums(draw.randint(1, 900), 9e5, 3e5, 1.5e4) for _ in range(strata)]
    named = {
        Stratum(2 ** (at % 8), "sampled", "constrained", "medium", f"customer-{at}"): each
        for at, each in enumerate(sums)
    }
    return ArmEvidence(strata=named, first_token=Latencies(BOUNDS_S, (90.0, 5.0, 4.0, 1.0), 10.0))


def test_a_closed_pair_contains_the_sums_of_both_roles():
    found = close_pair(TurnEvidence(), arm(10), arm(4, failed_requests=3.0, restarts=1.0))
    assert len(found.pairs) == 1
    assert cell_of(found.pairs[0], 2, Role.BASELINE) == (10, 500, 10_000_000, 200)
    assert cell_of(found.pairs[0], 0, Role.CANDIDATE) == (4, 200, 4_000_000, 80)
    row = row_of(found.pairs[0], Role.CANDIDATE)
    assert (row.failed, row.restarts, row.first_tokens, row.first_token_us) == (3, 1, 100, 10500000)
    assert row.first_tokens_slow == 5
    assert found.candidate.first_token.sum_s == 10.5


def test_arrays_of_different_lengths_are_added_as_if_they_ended_with_zeros():
    assert add_counts() == ()
    assert add_counts((1, 2)) == (1, 2)
    assert add_counts((1, 2), (), (10, 20, 30), (100,)) == (111, 22, 30)


def test_columns_have_a_number_for_each_stratum():
    found = close_pair(TurnEvidence(), arm(10, strata=2), arm(4, strata=2)).pairs[0]
    columns = list(columns_of(found, 3, "requests", "steps"))
    assert columns == [(10, 10, 0), (4, 4, 0), (200, 200, 0), (80, 80, 0)]
    assert list(columns_of(found, 1, "requests")) == [(10,), (4,)]


def test_a_stratum_that_appears_late_has_no_requests_in_earlier_pairs():
    found = close_pair(close_pair(TurnEvidence(), arm(strata=1), arm(strata=1)), arm(), arm())
    assert [len(counts) for counts in found.pairs] == [28, 44]
    assert cell_of(found.pairs[0], 2, Role.BASELINE).requests == 0


def test_an_abandoned_pair_leaves_its_failures():
    found = observe_open(TurnEvidence(), arm(), arm(failed_requests=2.0))
    assert found.open
    assert not found.pairs
    found = abandon_pair(abandon_pair(found))
    assert not found.open
    assert row_of(found.abandoned, Role.CANDIDATE).failed == 2


def test_the_smallest_strata_are_merged_and_no_request_is_lost():
    draw = random.Random(1)
    old, new = busy_arm(draw, 40), busy_arm(draw, 40)
    found = close_pair(TurnEvidence(), old, new)
    assert len(found.strata) == MAX_STRATA
    assert OTHER in found.strata
    cells = [cell_of(found.pairs[0], index, Role.CANDIDATE) for index in range(MAX_STRATA)]
    assert sum(cell.requests for cell in cells) == sum(s.requests for s in new.strata.values())


def test_two_hours_with_40_raw_strata_fit_into_the_bound():
    draw, found = random.Random(1), TurnEvidence()
    for _ in range(60):
        found = close_pair(found, busy_arm(draw, 40), busy_arm(draw, 40))
    size = len(json.dumps(to_document(found), separators=(",", ":")))
    assert MAX_BYTES / 2 < size <= MAX_BYTES
    assert len(found.pairs) == 60
    assert len(found.strata) >= 8


def test_windows_of_pods_are_standardised_by_the_mean_of_both_arms():
    pods = {
        "a": (Role.BASELINE, arm(10)),
        "b": (Role.CANDIDATE, arm(10)),
    }
    found = close_window(PodEvidence(), 0, pods)
    assert [each.windows[0].log_ratio_micro for each in found.pods] == [0, 0]
    assert found.pods[0].windows[0].expected_us == 30_000_000
    slow = ArmEvidence(
        strata={key: s + s - RequestSums(10, 500, 200) for key, s in arm().strata.items()}
    )
    later = close_window(found, 1, {"a": (Role.BASELINE, arm(10)), "b": (Role.CANDIDATE, slow)})
    assert later.pods[1].windows[1].log_ratio_micro > 300_000
    assert later.pods[0].windows[1].log_ratio_micro < 0


def test_sums_of_a_pod_are_those_of_all_its_windows():
    found = PodEvidence()
    for number, requests in enumerate((10.0, 4.0)):
        found = close_window(found, number, {"a": (Role.BASELINE, arm(requests, strata=2))})
    assert found.pods[0].sums == (28, 1400, 28_000_000, 560)


def test_the_baseline_before_a_trial_is_kept_in_the_strata_of_the_trial():
    found = compare_with(close_pair(TurnEvidence(), arm(strata=2), arm(strata=2)), arm(30, 3))
    assert len(found.before) == len(found.pairs[0])
    assert cell_of(found.before, 1, Role.BASELINE) == (30, 1500, 30_000_000, 600)
    assert not any(cell_of(found.before, 1, Role.CANDIDATE))


def test_the_bound_of_a_tail_has_the_share_closest_to_five_percent():
    assert tail_bound(Latencies(BOUNDS_S, (90.0, 5.0, 4.0, 1.0))) == 1
    assert tail_bound(Latencies()) == -1


def documents():
    turns = close_pair(TurnEvidence(), arm(), arm(4))
    pods = close_window(
        PodEvidence(), 0, {"a": (Role.BASELINE, arm()), "b": (Role.CANDIDATE, arm())}
    )
    return [compare_with(observe_open(turns, arm(), arm()), arm(30)), pods]


@pytest.mark.parametrize("evidence", documents(), ids=["turns", "pods"])
def test_a_document_is_read_as_it_was_written(evidence):
    assert from_document(json.loads(json.dumps(to_document(evidence)))) == evidence


def spoilt(value, draw):
    """Every place of a document, each with one wrong value."""
    if isinstance(value, dict):
        for key in value:
            for wrong in spoilt(value[key], draw):
                yield value | {key: wrong}
    elif isinstance(value, list) and value:
        for index in draw.sample(range(len(value)), min(len(value), 4)):
            for wrong in spoilt(value[index], draw):
                yield [*value[:index], wrong, *value[index + 1 :]]
    yield draw.choice([float("nan"), -0.5, True, {"a": 1}, None, 1e400, 10**400])


@pytest.mark.parametrize("evidence", documents(), ids=["turns", "pods"])
def test_a_document_with_one_wrong_value_is_an_error_with_its_place(evidence):
    draw, count = random.Random(2), 0
    for _ in range(10):
        for wrong in spoilt(to_document(evidence), draw):
            with pytest.raises(BadEvidence, match=r"^evidence[.\[ ]"):
                from_document(wrong)
            count += 1
    assert count > 400


def test_a_document_of_another_release_is_refused():
    with pytest.raises(BadEvidence, match=r"evidence\.version is 1"):
        from_document({"version": 1})


@pytest.mark.parametrize("seed", range(20))
def test_strata_merged_at_once_are_those_merged_one_after_the_other(seed):
    draw = random.Random(seed)
    strata = tuple(Stratum(2**at, "greedy", "free", "short", f"label-{at}") for at in range(30))
    if seed % 2:
        strata = (*strata[:7], OTHER, *strata[7:])
    sizes = [draw.randint(0, len(strata)) for _ in range(4)]
    arrays = tuple(
        tuple(draw.randint(0, 900) for _ in range(2 * ROW + 2 * CELL * size)) for size in sizes
    )
    at_once = _merge_smallest(strata, arrays, 9)
    in_turn = strata, arrays
    for _ in range(9):
        in_turn = _merge_smallest(*in_turn, 1)
    assert at_once[0] == in_turn[0]
    for one, other in zip(at_once[1], in_turn[1], strict=True):
        length = max(len(one), len(other))
        assert one + (0,) * (length - len(one)) == other + (0,) * (length - len(other))
    rows = zip(at_once[1], arrays, strict=True)
    assert all(sum(one[2 * ROW :]) == sum(other[2 * ROW :]) for one, other in rows)
