"""The randomization of turns."""

from itertools import pairwise

from specdecode_operator.judge.evidence import Role
from specdecode_operator.judge.turns import (
    pods_in_pair,
    role_in_turn,
    turn_order,
    turn_stretch,
    washout_stretch,
)


def test_the_order_of_pairs_is_a_fair_coin_without_memory():
    firsts = [turn_order(7, pair)[0] is Role.CANDIDATE for pair in range(4000)]
    assert 1880 < sum(firsts) < 2120
    repeats = sum(one == other for one, other in pairwise(firsts))
    assert 1880 < repeats < 2120
    assert firsts[:50] != [turn_order(8, pair)[0] is Role.CANDIDATE for pair in range(50)]


def test_each_pod_runs_both_roles_in_a_pair_and_neighbours_run_opposite_ones():
    for pair in range(20):
        for pod in range(4):
            assert {role_in_turn(3, pair, turn, pod) for turn in (0, 1)} == set(Role)
        assert role_in_turn(3, pair, 0, 0) is not role_in_turn(3, pair, 0, 1)


def test_the_first_pairs_are_short_and_small():
    assert max(turn_stretch(1, pair) for pair in range(3)) < 0.1
    assert all(0.75 <= turn_stretch(1, pair) <= 1.25 for pair in range(3, 100))
    assert [washout_stretch(pair) for pair in (0, 2, 3, 50)] == [0.3, 0.3, 1.0, 1.0]
    assert [pods_in_pair(2, pods) for pods in (0, 1, 2, 8)] == [0, 1, 1, 1]
    assert [pods_in_pair(3, pods) for pods in (0, 1, 2, 3, 8)] == [0, 1, 2, 2, 8]
