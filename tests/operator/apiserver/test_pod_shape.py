"""Placed, patched and guarded pods through a real API server, with the chart's rights."""

import base64
import json

import pytest

from specdecode_api import names
from specdecode_operator.objects import kinds
from specdecode_operator.objects.kinds import CHILDREN, DEPLOYMENT, EVENT, RESOURCE, ResourceKind
from specdecode_operator.objects.observed import Key
from specdecode_operator.settings import from_environment

pytestmark = pytest.mark.apiserver

SECRET = ResourceKind("", "v1", "Secret", "secrets", ())
KEY = "sk-5f1d-never-shown"
EVERYTHING = {
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [
        {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    ],
    "affinity": {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "podAffinityTerm": {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"a": "b"}},
                    },
                }
            ]
        }
    },
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "minDomains": 2,
            "nodeAffinityPolicy": "Honor",
        }
    ],
    "runtimeClassName": "nvidia",
    "priorityClassName": "high",
    "imagePullSecrets": [{"name": "registry"}],
    "hostNetwork": False,
    "securityContext": {"runAsUser": None},
    "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]},
    "containers": [
        {
            "name": "engine",
            "env": [
                {"name": "EMPTY", "value": ""},
                {"name": "FROM", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            ],
        },
        {
            "name": "sidecar",
            "image": "sidecar:1",
            "args": [],
            "ports": [{"containerPort": 80, "hostPort": 0}],
            "livenessProbe": {"tcpSocket": {"port": 80}, "initialDelaySeconds": 0},
            "resources": {"limits": {"memory": "1024Mi"}, "requests": {}},
        },
    ],
    "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1024Mi"}}],
}
METADATA = {"labels": {"team": "a"}, "annotations": {"note": "b"}}


@pytest.fixture
def carried_out(parts, chat, api, namespace):
    """Reconcile a resource until nothing is written; returns its status and Deployment."""

    async def run(**spec):
        chat(**spec)
        async with parts() as found:
            await found.resync.once()
            await found.reconcile(Key(namespace, "chat"))
            # As a later event would: the API server's answers are in the cache, defaults and all.
            await found.resync.once()
            found.requests.methods.clear()
            await found.reconcile(Key(namespace, "chat"))
            repeated = [method for method in found.requests.methods if method != "GET"]
        status = api.get(RESOURCE, namespace, "chat")["status"]
        return status, api.get(DEPLOYMENT, namespace, "chat"), repeated

    return run


async def test_everything_that_a_pod_may_be_given_is_stored_and_not_written_twice(carried_out):
    _, deployment, repeated = await carried_out(
        template={"metadata": METADATA, "spec": EVERYTHING},
        engine={"device": "GPU"},
        resources={"limits": {"nvidia.com/mig-1g.10gb": 1, "memory": "2048Mi"}},
    )
    spec = deployment["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert spec["priorityClassName"] == "high"
    assert [container["name"] for container in spec["containers"]] == ["engine", "sidecar"]
    assert "runAsUser" not in spec["securityContext"]
    limits = spec["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/mig-1g.10gb"] == "1"
    assert repeated == []


async def test_the_pod_of_several_ranks_is_stored_and_not_written_twice(carried_out):
    _, deployment, repeated = await carried_out(engine={"device": "GPU"}, parallelism={"tensor": 2})
    spec = deployment["spec"]["template"]["spec"]
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    (shared,) = [volume for volume in spec["volumes"] if volume["name"] == "shm"]
    assert shared["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
    assert repeated == []


async def test_a_write_that_the_api_server_undoes_counts_as_no_drift(parts, chat, namespace):
    """It replaces the empty policy by a default, as webhooks replace other values."""
    sidecar = {"name": "sidecar", "image": "sidecar:1", "imagePullPolicy": ""}
    chat(template={"spec": {"containers": [sidecar]}})
    async with parts() as wired:
        await wired.resync.once()
        for _ in range(3):
            await wired.reconcile(Key(namespace, "chat"))
        drifts = wired.metrics.drifts.labels(kind=DEPLOYMENT.kind)
        assert next(iter(drifts.collect())).samples[0].value == 0


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({"hostNetwrk": True}, "hostNetwrk"),
        ({"dnsPolicy": 3}, "dnsPolicy"),
        ({"containers": [{"name": "sidecar"}]}, "image"),
        ({"activeDeadlineSeconds": 5}, "activeDeadlineSeconds"),
    ],
)
async def test_what_the_api_server_refuses_of_a_patch_is_reported_and_not_tried_for_ever(
    patch, expected, carried_out
):
    status, deployment, _ = await carried_out(template={"spec": patch}, router={})
    assert deployment is None
    found = {each["type"]: each for each in status["conditions"]}
    for kind in ("Ready", "ConfigResolved"):
        assert (found[kind]["status"], found[kind]["reason"]) == ("False", "TemplateRejected")
        assert expected in found[kind]["message"]
        assert "correct spec.template" in found[kind]["message"]
    assert found["Stalled"]["status"] == "True"


async def test_a_template_of_routers_that_is_refused_is_reported(carried_out):
    template = {"spec": {"dnsPolicy": 3}}
    status, deployment, _ = await carried_out(router={"template": template})
    assert deployment is None
    found = {each["type"]: each for each in status["conditions"]}
    assert found["ConfigResolved"]["reason"] == "TemplateRejected"
    assert "correct spec.router.template" in found["ConfigResolved"]["message"]


async def test_no_key_of_the_api_is_reported_and_none_can_be_read(
    carried_out, api, namespace, template, caplog
):
    value = base64.b64encode(KEY.encode()).decode()
    api.create(
        SECRET,
        {"metadata": {"name": "clients", "namespace": namespace}, "data": {"keys": value}},
    )
    with caplog.at_level(0):
        status, deployment, _ = await carried_out(serving={"apiKeys": {"secretName": "clients"}})
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    assert {"secretName": "clients", "optional": True}.items() <= next(
        each for each in volumes if each["name"] == "api-keys"
    )["secret"].items()
    reported = [status, api.items(EVENT, namespace), caplog.text]
    reported += [api.items(kind, namespace) for kind in (RESOURCE, *CHILDREN)]
    text = json.dumps(reported)
    assert "clients" in text
    assert KEY not in text
    assert value not in text
    rules = [
        rule
        for manifest in template()
        if manifest["kind"] in ("ClusterRole", "Role")
        for rule in manifest["rules"]
    ]
    named = [rule.get("resourceNames") for rule in rules if "secrets" in rule["resources"]]
    assert named == [[names.ROUTER_SECRET]] * len(named)
    assert {kind.only for kind in kinds.ALL if kind.plural == "secrets"} == {names.ROUTER_SECRET}


async def test_settings_of_the_chart_reach_engine_pods_and_are_taken_back(
    parts, chat, api, namespace, template, example
):
    """As rendered by Helm, read by the operator, and stored by the API server."""
    values = (
        "engine.podSecurityContext.runAsNonRoot=true,engine.securityContext.runAsUser=1000650000,"
        "engine.caBundle.configMap=authorities"
    )
    (rendered,) = (each for each in template("--set", values) if each["kind"] == "Deployment")
    (container,) = rendered["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each.get("value", "") for each in container["env"]}
    defaults = from_environment(environment).pod_defaults
    hub = example("hub")["spec"]
    download = {"cacheClaim": "models"}
    chat(model=hub["model"], speculation=hub["speculation"], download=download)

    async def settled(**settings):
        async with parts(**settings) as wired:
            await wired.resync.once()
            await wired.reconcile(Key(namespace, "chat"))
            live = api.get(DEPLOYMENT, namespace, "chat")
            return live["spec"]["template"]

    plain = await settled()
    found = await settled(pod_defaults=defaults)
    assert plain["spec"]["securityContext"]["fsGroup"] == 65532
    assert found["spec"]["securityContext"] == {"runAsNonRoot": True}
    (engine,), (fetch,) = found["spec"]["containers"], found["spec"]["initContainers"]
    assert engine["securityContext"] == fetch["securityContext"] == {"runAsUser": 1000650000}
    volumes = {each["name"]: each for each in found["spec"]["volumes"]}
    assert volumes["ca-bundle"]["configMap"]["name"] == "authorities"
    assert found["metadata"] == plain["metadata"]  # the same configuration
    assert await settled() == plain
