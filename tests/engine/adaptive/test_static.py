"""The depth at start, kept within what a range of batch sizes allows."""

from specdecode_engine.adaptive.policy import StaticPolicy
from specdecode_engine.adaptive.table import BatchRange, RangeTable


def test_static_depth_keeps_within_the_candidates_of_the_batch_size() -> None:
    candidates = {1: (1, 3, 5), 8: (0, 1), 32: (0,), 64: (4, 6)}
    table = RangeTable([BatchRange(bound, steps) for bound, steps in candidates.items()])
    depth = StaticPolicy(3, table)
    decisions = [depth.decide(size, 0) for size in (1, 7, 8, 31, 32, 63, 64, 500)]
    assert [decision.num_steps for decision in decisions] == [3, 3, 1, 1, 0, 0, 4, 4]
    assert [decision.range_start for decision in decisions] == [1, 1, 8, 8, 32, 32, 64, 64]
    assert StaticPolicy(2).decide(10, 0).num_steps == 2
