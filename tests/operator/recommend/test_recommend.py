"""Tables for fleets whose acceptance and costs are known, and reasons where they are not."""

import math

import pytest

from specdecode_api.speculation import Policy
from specdecode_api.table import TableEntry, candidates
from specdecode_operator.fleet import BucketTotals, PositionTotals, Reading
from specdecode_operator.judge.evidence import ArmKey
from specdecode_operator.recommend import (
    Bounds,
    Current,
    NotYet,
    Pool,
    Recommendation,
    ValidityKey,
    pool_of,
    recommend,
)
from specdecode_operator.recommend.cost import Costs
from specdecode_operator.recommend.pool import PodFigures
from specdecode_operator.recommend.survival import rates

KEY = ValidityKey("1", "/models/m", "/models/d", "STANDALONE", "1", "16", "GPU", "bfloat16")
BUCKETS = frozenset({0, 1, 2, 3, 5, 7})
BOUNDS = Bounds(BUCKETS)


def seconds(size, steps, draft_share=0.1, free_rows=32):
    """Time of a decode step on hardware where rows are free at first, and a draft step never is."""
    return 0.01 * (1 + size * (steps + 1) / free_rows + draft_share * steps * (1 + size / 32))


def figures(ran, rate=0.8, decode_steps=2000, cost=seconds, scale=1.0):
    """Figures of a pod that ran these draft steps in these buckets, at 1.5 times their bound."""
    totals: dict[tuple[int, int], BucketTotals] = {}
    positions: dict[tuple[int, int], PositionTotals] = {}
    for bucket, steps_run in ran.items():
        size = 1 if bucket == 1 else 1.5 * bucket
        for steps in steps_run:
            time = decode_steps * cost(size, steps) * scale
            totals[bucket, steps] = BucketTotals(decode_steps, decode_steps * size, time)
            reached = decode_steps * size
            for place in range(1, steps + 1):
                cell = positions.get((bucket, place), PositionTotals())
                kept = reached * rate
                positions[bucket, place] = PositionTotals(
                    cell.reached + reached, cell.accepted + kept
                )
                reached = kept
    return PodFigures(totals, positions)


def pool(*pods):
    return Pool(KEY, pods)


def best(size, rate, allowed=BUCKETS, cost=seconds):
    def tokens(steps):
        return sum(rate**place for place in range(steps + 1))

    return max(allowed, key=lambda steps: tokens(steps) / cost(size, steps))


def static(num_steps=3, entries=None):
    return Current(Policy.STATIC, entries or {}, num_steps)


def test_the_depth_of_each_band_is_the_one_with_most_tokens_per_second():
    ran = {1: BUCKETS, 4: BUCKETS, 16: BUCKETS, 64: BUCKETS}
    found = recommend(pool(figures(ran)), static(), BOUNDS)
    assert isinstance(found, Recommendation)
    chosen = {int(bound): entry.candidate_steps for bound, entry in found.entries.items()}
    for bucket in ran:
        size = 1 if bucket == 1 else 1.5 * bucket
        wanted = best(size, 0.8)
        now = max(bound for bound in chosen if bound <= bucket)
        assert chosen[now] == (wanted,)
    assert best(1, 0.8) > best(96, 0.8), "the simulated hardware needs different draft steps"
    assert found.gain_low <= found.gain <= found.gain_high
    assert found.gain_low > 0
    assert found.num_steps in candidates(found.entries)
    assert found.decode_steps == 4 * 6 * 2000
    assert sum(each.share_of_time for each in found.buckets) == pytest.approx(1)


def test_the_expected_gain_is_that_of_changing_over():
    """All at 3 draft steps, costs of 0 and 1 known a little: the gain is that of both rates."""
    ran = {32: [3]}
    mostly = figures(ran, rate=0.3, decode_steps=20_000)
    some = figures({32: [0, 1]}, rate=0.3, decode_steps=30)
    found = recommend(pool(mostly, some), static(), BOUNDS)
    assert isinstance(found, Recommendation)
    size, wanted = 48, best(48, 0.3, {0, 1, 3})

    def rate(steps):
        return sum(0.3**place for place in range(steps + 1)) / seconds(size, steps)

    assert found.buckets[0].best == wanted
    assert found.gain == pytest.approx(rate(wanted) / rate(3) - 1, rel=0.02)


def test_equal_neighbours_become_one_range():
    ran = dict.fromkeys((1, 2, 4, 8), BUCKETS)
    found = recommend(pool(figures(ran, rate=0.1)), static(3), Bounds(BUCKETS, largest_batch=8))
    assert isinstance(found, Recommendation)
    assert set(found.entries) == {"1"}
    assert found.entries["1"].candidate_steps == (0,)


def test_what_was_not_seen_stays_as_it_is():
    current = static(
        3, {"1": TableEntry(candidate_steps=(3,)), "24": TableEntry(candidate_steps=(1,))}
    )
    found = recommend(pool(figures({4: BUCKETS}, rate=0.05)), current, BOUNDS)
    assert isinstance(found, Recommendation)
    steps = {bound: entry.candidate_steps for bound, entry in found.entries.items()}
    assert steps == {"1": (3,), "4": (0,), "8": (3,), "24": (1,)}


def test_a_depth_that_was_never_tried_is_recommended_only_if_its_cost_is_known():
    between = recommend(
        pool(figures({1: [1, 7]}, rate=0.9)), static(1), Bounds(frozenset({1, 5, 7}))
    )
    assert isinstance(between, Recommendation)
    assert set(between.buckets[0].rates) == {1, 5, 7}, "5 lies between two that were measured"
    deeper = recommend(
        pool(figures({1: [0, 1]}, rate=0.99)), static(0), Bounds(frozenset({0, 1, 7}))
    )
    assert isinstance(deeper, Recommendation)
    assert set(deeper.buckets[0].rates) == {0, 1}
    assert candidates(deeper.entries) == (0, 1), "0 stays where nothing was seen"


MOSTLY_BEST = pool(figures({1: [5]}, decode_steps=30_000), figures({1: [1]}, decode_steps=30))


@pytest.mark.parametrize(
    ("given", "current", "reason"),
    [
        (None, static(), "NoDecodeSteps"),
        (Pool(KEY, (PodFigures({}, {}),)), static(), "NoDecodeSteps"),
        (Pool(KEY, (figures({1: BUCKETS}, decode_steps=50),)), static(), "TooFewDecodeSteps"),
        (Pool(KEY, (figures({1: [3]}),)), static(), "CostsUnknown"),
        (MOSTLY_BEST, static(5), "NoGain"),
    ],
)  # fmt: skip
def test_where_nothing_can_be_recommended_the_reason_is_given(given, current, reason):
    found = recommend(given, current, BOUNDS)
    assert isinstance(found, NotYet)
    assert found.reason == reason
    assert found.message


def test_a_table_that_was_recommended_is_not_recommended_again():
    ran = {1: BUCKETS, 16: BUCKETS}
    first = recommend(pool(figures(ran)), static(), BOUNDS)
    assert isinstance(first, Recommendation)
    steps = {int(bound): entry.candidate_steps[0] for bound, entry in first.entries.items()}
    ran_now = {1: [steps[1]], 16: [steps[16]]}
    before = figures(ran, decode_steps=30)  # of other draft steps, so that costs are known
    second = recommend(
        pool(figures(ran_now, decode_steps=30_000), before),
        static(first.num_steps, first.entries),
        BOUNDS,
    )
    assert isinstance(second, NotYet)
    assert second.reason == "NoGain"


def test_every_policy_gets_candidates_of_its_kind():
    ran = {1: BUCKETS, 64: BUCKETS}
    entries = {"1": TableEntry(candidate_steps=(0, 1, 2, 3, 5, 7), ema_alpha=0.5)}
    for policy in Policy:
        found = recommend(pool(figures(ran)), Current(policy, entries, 3), BOUNDS)
        assert isinstance(found, Recommendation), policy
        top = best(1, 0.8)
        steps = found.entries["1"].candidate_steps
        assert top in steps
        assert set(steps) <= BUCKETS
        if policy is Policy.STATIC:
            assert steps == (top,)
        if policy is Policy.EMA:
            assert max(steps) == top
            assert len(steps) > 1
        if policy is Policy.GOODPUT:
            assert 0 in steps
            assert len(steps) < len(BUCKETS), "what never pays is left out"
        assert found.entries["1"].ema_alpha == 0.5


@pytest.mark.parametrize(("verified", "kept"), [(4, None), (3, 3), (None, None)])
def test_no_more_is_verified_than_the_recommended_steps_draft(verified, kept):
    """An engine, and the API server, would refuse the table."""
    entry = TableEntry(candidate_steps=(7,), verify_tokens=verified)
    current = Current(Policy.STATIC, {"1": entry}, 7, drafted=lambda steps: 3 if steps < 7 else 7)
    found = recommend(pool(figures({4: BUCKETS}, rate=0.5)), current, BOUNDS)
    assert isinstance(found, Recommendation)
    assert found.entries["4"].candidate_steps != (7,)
    assert found.entries["4"].verify_tokens == kept
    assert found.entries["8"] == entry


def test_pods_that_differ_widen_the_interval():
    ran = {16: [1, 7]}
    alike = pool(*(figures(ran) for _ in range(6)))
    mixed = pool(
        *(figures(ran, scale=1 + number / 3, rate=0.5 + number / 12) for number in range(6))
    )
    narrow, wide = (recommend(each, static(7), BOUNDS) for each in (alike, mixed))
    assert isinstance(narrow, Recommendation)
    assert isinstance(wide, Recommendation)
    assert wide.gain_high - wide.gain_low > 10 * (narrow.gain_high - narrow.gain_low)
    assert recommend(mixed, static(7), BOUNDS) == wide, "the same pool, the same interval"


def test_a_lone_pod_has_an_interval_too():
    found = recommend(pool(figures({1: BUCKETS}, decode_steps=600)), static(1), BOUNDS)
    assert isinstance(found, Recommendation)
    assert found.gain_low < found.gain < found.gain_high


def reading(uid, start_s, figures, **facts):
    known = {name: getattr(KEY, name) for name in ValidityKey.__dataclass_fields__}
    return Reading(
        uid, start_s, ArmKey("c", "t"), {}, figures.step_totals, figures.positions, known | facts
    )


def test_the_pool_is_what_came_since():
    old, new = figures({1: [1]}, decode_steps=100), figures({1: [1]}, decode_steps=300)
    found = pool_of(
        [reading("a", 5, new), reading("b", 9, new)], [reading("a", 5, old), reading("b", 5, new)]
    )
    assert found is not None
    assert [pod.step_totals[1, 1].steps for pod in found.pods] == [200, 300]
    assert found.pods[0].positions[1, 1].reached == 200
    assert pool_of([]) is None
    loading = reading("c", 9, PodFigures({}, {}), device="")
    assert pool_of([loading]) is None
    pooled = pool_of([loading, reading("a", 5, new)])
    assert pooled is not None
    assert pooled.key == KEY


def test_pods_of_another_key_are_left_out():
    one = figures({1: [1]})
    found = pool_of([reading(str(n), 1, one, device="A" if n else "B") for n in range(3)])
    assert found is not None
    assert found.key.device == "A"
    assert len(found.pods) == 2


def test_rates_follow_the_evidence_and_are_extrapolated():
    known = rates(figures({1: [2]}, rate=0.8, decode_steps=100_000).positions, 4).expected_tokens(1)
    assert known[:3] == pytest.approx((1, 1.8, 2.44), rel=1e-3)
    assert known[4] == pytest.approx(sum(0.8**place for place in range(5)), rel=1e-3)
    assert rates({}, 1).expected_tokens(1) == (1, 1.5)
    other = rates(figures({1: [2]}, rate=0.8, decode_steps=100_000).positions, 2).expected_tokens(
        64
    )
    assert other == pytest.approx((1, 1.8, 2.44), rel=1e-3), "a bucket without drafts leans on all"


def test_costs_are_compared_at_one_batch_size():
    """5 draft steps ran at the upper end of the bucket, 0 at the lower; lines carry them over."""
    costs = Costs({
        (8, 5): BucketTotals(100, 1500, 100 * seconds(15, 5)),
        (4, 5): BucketTotals(100, 500, 100 * seconds(5, 5)),
        (8, 0): BucketTotals(100, 1000, 100 * seconds(10, 0)),
        (16, 3): BucketTotals(5, 100, 1),
    })  # fmt: skip
    assert costs.seconds(10, 5) == pytest.approx(seconds(10, 5))
    assert costs.seconds(10, 2) == pytest.approx(seconds(10, 2), rel=0.05)
    assert costs.seconds(11, 0) == seconds(10, 0), "near enough"
    assert costs.seconds(20, 0) is None
    assert costs.seconds(10, 7) is None
    assert costs.measured == (0, 5), "five decode steps are too few"
    measured = costs.seconds(10, 5)
    assert measured is not None
    assert math.isfinite(measured)
