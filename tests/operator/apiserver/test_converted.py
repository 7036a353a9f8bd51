"""Converted command lines on a real API server."""

from pathlib import Path

import pytest
import yaml

from specdecode_operator.objects.kinds import RESOURCE

pytestmark = [pytest.mark.apiserver, pytest.mark.usefixtures("kubeconfig")]

GOLDEN = Path(__file__).parents[1] / "convert" / "golden"


@pytest.mark.parametrize("runtime", ["vllm", "specdecode"])
def test_every_converted_resource_is_admitted(api, namespace, runtime):
    resources = list(yaml.safe_load_all((GOLDEN / f"{runtime}.yaml").read_text()))
    assert len(resources) >= 30
    for number, resource in enumerate(resources):
        resource["metadata"]["name"] = f"chat-{number}"
        answer = api.client.post(f"{RESOURCE.path(namespace)}?dryRun=All", json=resource)
        assert answer.status_code == 201, answer.json()["message"]
        assert answer.json()["spec"] == {"replicas": 1} | resource["spec"]
