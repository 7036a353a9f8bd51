"""The choice of an engine: prefix, hash, bounded load, arms of trials; few requests move."""

from collections import Counter

import pytest

from specdecode_router.routing.choice import ChoiceReason, RoutingCandidate, choose, load_limits

FOUR = [RoutingCandidate(name) for name in ("a", "b", "c", "d")]


def pick(candidates, key=b"k", depths=None, shared=0):
    chosen = choose(candidates, depths or {}, shared, key)
    assert chosen is not None
    return chosen


def keys(count):
    return [f"conversation {number}".encode() for number in range(count)]


def test_without_an_engine_none_is_chosen():
    assert choose([], {}, 0, b"") is None


def test_the_only_engine_is_chosen():
    assert pick([RoutingCandidate("a", load=900)]).reason is ChoiceReason.ONLY


def test_hashing_is_stable_and_even():
    first = Counter(pick(FOUR, key).name for key in keys(2000))
    assert [pick(FOUR, key) for key in keys(50)] == [pick(FOUR[::-1], key) for key in keys(50)]
    assert all(400 < count < 600 for count in first.values())
    assert pick(FOUR).reason is ChoiceReason.HASH


def test_only_the_requests_of_a_lost_engine_move():
    three = FOUR[:3]
    for key in keys(300):
        before, after = pick(FOUR, key).name, pick(three, key).name
        assert before == after or before == "d"


def test_the_longest_known_prefix_is_before_the_hash():
    for key in keys(20):
        chosen = pick(FOUR, key, {"a": 3, "b": 5})
        assert (chosen.name, chosen.reason) == ("b", ChoiceReason.PREFIX)


def test_a_prefix_that_many_prompts_share_does_not_attract_them_all():
    found = Counter(pick(FOUR, key, {"a": 15}, shared=15).name for key in keys(400))
    assert len(found) == 4
    assert pick(FOUR, b"k", {"a": 16}, shared=15).name == "a"


@pytest.mark.parametrize("loads", [(10, 2, 2, 2), (3, 0, 0, 0), (100, 90, 95, 99)])
def test_no_engine_gets_more_than_the_bound(loads):
    candidates = [
        RoutingCandidate(each.name, load=load) for each, load in zip(FOUR, loads, strict=True)
    ]
    chosen = pick(candidates, b"k", {"a": 50})
    limits = load_limits(candidates)
    load = dict(zip("abcd", loads, strict=True))
    assert load[chosen.name] < limits[chosen.name]
    mean = (1 + sum(loads)) / 4
    assert limits[chosen.name] <= 1.25 * mean + 1


def test_load_moves_requests_to_the_next_best_prefix():
    candidates = [RoutingCandidate("a", load=20), *FOUR[1:]]
    chosen = pick(candidates, b"k", {"a": 9, "c": 4})
    assert (chosen.name, chosen.reason) == ("c", ChoiceReason.LOAD)


def test_loads_stay_within_the_bound_whatever_the_requests_prefer():
    loads = dict.fromkeys("abcd", 0)
    for number in range(400):
        candidates = [RoutingCandidate(name, load=load) for name, load in loads.items()]
        loads[pick(candidates, str(number).encode(), {"a": 30}).name] += 1
    assert max(loads.values()) <= 1.25 * 100 + 1


def test_an_engine_that_starts_gets_a_smaller_share():
    candidates = [RoutingCandidate("a", weight=0.1), *(RoutingCandidate(n, load=4) for n in "bcd")]
    assert load_limits(candidates)["a"] == 1
    found = Counter(pick([RoutingCandidate("a", load=1, weight=0.1), *candidates[1:]], key).name
                    for key in keys(200))  # fmt: skip
    assert "a" not in found


def trial(canaries=1, baselines=1, stables=2):
    arms = {"canary": canaries, "baseline": baselines, "stable": stables}
    return [
        RoutingCandidate(f"{arm} {i}", arm) for arm, count in arms.items() for i in range(count)
    ]


def test_arms_of_a_trial_get_the_share_of_their_pods_whatever_is_cached_or_loaded():
    candidates = [
        RoutingCandidate(each.name, each.arm, load=30 if each.arm == "canary" else 0)
        for each in trial()
    ]
    depths = {"stable 0": 40, "baseline 0": 3}
    found = Counter(pick(candidates, key, depths).name.split()[0] for key in keys(2000))
    assert 900 < found["stable"] < 1100
    assert all(400 < found[arm] < 600 for arm in ("canary", "baseline"))


def test_a_conversation_stays_in_its_arm():
    for key in keys(50):
        arms = {
            pick(trial(stables=3), key, {"stable 1": depth}).name.split()[0] for depth in range(5)
        }
        assert len(arms) == 1


def test_prefixes_count_within_an_arm():
    key = next(key for key in keys(100) if pick(trial(), key).name.startswith("stable"))
    assert pick(trial(), key, {"stable 1": 4, "canary 0": 9}).name == "stable 1"
