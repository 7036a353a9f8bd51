"""The real thing: the local node, the chart's operator, an endpoint that answers."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "cluster")]

from demo.__main__ import OPERATOR_IMAGE, install_chart, resource_state  # noqa: E402
from demo.checkpoints import load_checkpoints  # noqa: E402
from demo.console import Console  # noqa: E402
from demo.kubernetes import Cluster, wait_until  # noqa: E402

READY_SECONDS = 600

RESOURCE = """
apiVersion: specdecode.io/v1alpha1
kind: SpecDecodeDeployment
metadata: {{name: {name}}}
spec:
  model: {{uri: "pvc://models/target", servedName: tiny}}
  pageSize: 8
  replicas: {replicas}
  parallelism: {{tensor: {tensor}}}
  serving: {{page: true}}
  lifecycle: {{preStop: 3s, drainTimeout: 40s}}
  resources: {{requests: {{cpu: 50m, memory: 512Mi}}}}
  engine: {{device: CPU, threads: 1, kvCache: {{size: 64Mi}}}}
  speculation:
    algorithm: {algorithm}
    numSteps: 3
"""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The running cluster with chart and checkpoints; CONTEXT names another one."""
    cluster = Cluster(os.environ.get("CONTEXT") or None)
    if cluster.is_local:
        cluster.localnode("up")
    cluster.use_programs()
    cluster.localnode("images")
    install_chart(cluster)
    load_checkpoints(cluster, Console(), OPERATOR_IMAGE)
    cluster.kubectl("delete", "sdd", "--all", "--wait")
    yield cluster
    cluster.kubectl("delete", "sdd", "--all", "--wait=false")


@pytest.fixture
def apply(cluster: Cluster):
    """Apply a resource and wait until the operator calls it Ready for this generation."""

    def apply_and_wait(
        name: str,
        replicas: int = 1,
        algorithm: str = "EAGLE3",
        draft: str | None = "eagle3",
        tensor: int = 1,
    ) -> None:
        text = RESOURCE.format(name=name, replicas=replicas, algorithm=algorithm, tensor=tensor)
        if draft is not None:
            text += f'    draft: {{uri: "pvc://models/{draft}"}}\n'
        cluster.kubectl("apply", "-f", "-", given=text)
        wait_until(lambda: resource_state(cluster, name), print, READY_SECONDS)

    return apply_and_wait
