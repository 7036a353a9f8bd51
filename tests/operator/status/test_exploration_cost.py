"""What trials cost, as the operator's metrics report it."""

import pytest

from specdecode_operator.cluster.metrics import Metrics
from specdecode_operator.status.exploration_cost import exploration_cost


def resource(share, replicas=1, limit=None):
    spec = {"replicas": replicas}
    if limit is not None:
        spec["rollout"] = {"exploration": {"maxCandidateShare": limit}}
    return {"spec": spec, "status": {"exploration": {"candidateShare": share}}}


@pytest.mark.parametrize(
    ("resources", "pod_s", "used"),
    [
        ([], 0, 0),
        ([{"spec": {}}, {"spec": {}, "status": {"exploration": {}}}], 0, 0),
        ([resource("4.00%")], 3456, 0.8),
        ([resource("4.00%", replicas=8), resource("1%", limit="1%")], 27648 + 864, 1.0),
        ([resource("2%", limit="10%"), resource("0.5%")], 1728 + 432, 0.2),
        ([resource("0%", limit="0%")], 0, 0),
        ([resource("2%", replicas=0)], 1728, 0.4),
        ([resource("unknown"), resource("5%")], 4320, 1.0),
    ],
    ids=[
        "none",
        "no trials",
        "default limit",
        "several",
        "limits differ",
        "no budget",
        "scaled to zero",
        "of another version",
    ],
)
def test_cost_is_summed_and_the_largest_part_of_a_budget_is_found(resources, pod_s, used):
    found = exploration_cost(resources)
    assert found.candidate_pod_s == pytest.approx(pod_s)
    assert found.largest_used == pytest.approx(used)


def test_the_cost_is_exported():
    metrics = Metrics("test")
    metrics.watch_resources(lambda: [resource("4.00%", replicas=2)])
    prefix = "specdecode_operator_exploration_"
    sample = metrics.registry.get_sample_value
    assert sample(f"{prefix}candidate_pod_seconds") == pytest.approx(6912)
    assert sample(f"{prefix}budget_used_ratio") == pytest.approx(0.8)
