"""What the demo prints and applies, without a cluster."""

import pytest

from demo.__main__ import expected_time
from demo.checkpoints import loader_pod


@pytest.mark.parametrize(
    ("is_local", "has_programs", "parts", "absent"),
    [
        (True, False, ("10 to 15 minutes", "2 to 5 minutes", "half a minute"), "your cluster"),
        (True, True, ("2 to 5 minutes", "half a minute"), "Kubernetes, etcd"),
        (False, False, ("2 to 5 minutes", "your cluster"), "Kubernetes, etcd"),
    ],
)
def test_the_demo_names_its_time_before_it_builds(is_local, has_programs, parts, absent):
    text = expected_time(is_local=is_local, has_programs=has_programs)
    assert all(part in text for part in parts)
    assert absent not in text


@pytest.mark.parametrize("is_on_node", [True, False])
def test_the_loader_is_root_only_where_fsgroup_does_not_apply(is_on_node):
    spec = loader_pod("image:1", is_on_node=is_on_node)["spec"]
    assert spec["containers"][0]["image"] == "image:1"
    assert spec["securityContext"]["runAsUser"] == (0 if is_on_node else 65532)
    assert ("fsGroup" in spec["securityContext"]) is not is_on_node
