"""Routers of a resource against a real API server: owned objects, token, and the Service."""

import base64
import copy
from datetime import UTC, datetime

import pytest

from specdecode_api import names
from specdecode_operator.cluster.kube_api import KubeApiError
from specdecode_operator.cluster.router_secrets import RouterSecrets
from specdecode_operator.cluster.token_rotation import LIFETIME, next_step
from specdecode_operator.objects.kinds import (
    CHILDREN,
    DEPLOYMENT,
    OWNED_SELECTOR,
    POD,
    RESOURCE,
    ROUTER_CHILDREN,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
)

pytestmark = pytest.mark.apiserver

READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}


@pytest.fixture(scope="module")
def operator(kubeconfig, tmp_path_factory, until, make_operator):
    started = make_operator(kubeconfig, tmp_path_factory.mktemp("operator") / "log")
    started.start(until)
    yield started
    assert started.stop() == 0
    log = started.log.read_text()
    assert "Traceback" not in log, log
    assert "is forbidden" not in log, log


@pytest.fixture
def serve(api, namespace, until):
    """Report pods of a Deployment as ready, as its controller and the kubelet would."""

    def report(name, count):
        until(lambda: api.get(DEPLOYMENT, namespace, name))
        counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
        generation = api.get(DEPLOYMENT, namespace, name)["metadata"]["generation"]
        status = {"observedGeneration": generation, **dict.fromkeys(counts, count)}
        api.merge(DEPLOYMENT, namespace, name, {"status": status}, "/status")

    return report


@pytest.fixture
def engine_pod(api, namespace):
    """Create a ready pod of the engines' Deployment as it is now."""

    def create(name):
        template = api.get(DEPLOYMENT, namespace, "chat")["spec"]["template"]
        metadata = copy.deepcopy(template["metadata"]) | {"name": name, "namespace": namespace}
        api.create(POD, {"metadata": metadata, "spec": template["spec"]})
        api.merge(POD, namespace, name, READY, "/status")

    return create


def component(api, namespace):
    return api.get(SERVICE, namespace, "chat")["spec"]["selector"][names.LABEL_COMPONENT]


def tokens(api, namespace):
    secret = api.get(SECRET, namespace, names.ROUTER_SECRET)
    return {key: base64.b64decode(text).decode() for key, text in secret["data"].items()}


def test_the_service_leads_to_routers_from_when_they_can_serve_until_they_are_removed(
    operator, api, namespace, chat, until, serve, engine_pod, condition
):
    uid = chat(router={})["metadata"]["uid"]
    until(lambda: condition("RouterReady")[1] == "RoutersStarting")
    assert component(api, namespace) == "engine"
    for kind in ROUTER_CHILDREN:
        (child,) = api.items(kind, namespace, OWNED_SELECTOR)
        assert child["metadata"]["ownerReferences"][0]["uid"] == uid
    serve("chat-router", 2)
    until(lambda: condition("RouterReady")[1] == "WaitingForEngines")
    assert component(api, namespace) == "engine"
    engine_pod("chat-1")
    until(lambda: component(api, namespace) == "router")
    until(lambda: condition("RouterReady") == ("True", "RoutersServe", "2 routers serve"))
    assert api.get(RESOURCE, namespace, "chat")["status"]["router"] == {
        "readyReplicas": 2,
        "isServing": True,
    }
    serve("chat-router", 0)
    until(lambda: condition("Available")[1] == "RoutersNotReady")
    assert component(api, namespace) == "router"
    api.merge(RESOURCE, namespace, "chat", {"spec": {"router": None}})
    until(lambda: component(api, namespace) == "engine")
    until(lambda: api.get(DEPLOYMENT, namespace, "chat-router") is None)
    for kind in (*ROUTER_CHILDREN, SERVICE_ACCOUNT):
        until(lambda kind=kind: api.get(kind, namespace, "chat-router") is None)
    until(lambda: "router" not in api.get(RESOURCE, namespace, "chat")["status"])


def test_a_namespace_has_one_token_which_a_second_resource_shares(
    operator, api, namespace, chat, until
):
    chat("one", router={})
    until(lambda: api.get(SECRET, namespace, names.ROUTER_SECRET))
    before = tokens(api, namespace)
    assert list(before) == [names.ROUTER_TOKEN_KEY]
    assert len(before[names.ROUTER_TOKEN_KEY]) >= 32
    chat("two", router={"replicas": 1})
    until(lambda: api.get(DEPLOYMENT, namespace, "two-router"))
    assert tokens(api, namespace) == before
    for name in ("one", "two"):
        pods = [api.get(DEPLOYMENT, namespace, each) for each in (name, f"{name}-router")]
        for pod in pods:
            volumes = pod["spec"]["template"]["spec"]["volumes"]
            (secret,) = [each["secret"] for each in volumes if "secret" in each]
            assert secret["secretName"] == names.ROUTER_SECRET
    log = operator.log.read_text()
    assert before[names.ROUTER_TOKEN_KEY] not in log


def test_the_token_is_rotated_when_its_annotation_is_removed(operator, api, namespace, chat, until):
    chat(router={})
    until(lambda: api.get(SECRET, namespace, names.ROUTER_SECRET))
    before = tokens(api, namespace)[names.ROUTER_TOKEN_KEY]
    remove = {"metadata": {"annotations": {names.ANNOTATION_TOKENS_CHANGED: None}}}
    api.merge(SECRET, namespace, names.ROUTER_SECRET, remove)
    # The next operator reads the Secret at once; a running one within a minute.
    operator.stop()
    operator.start(until)
    until(lambda: set(tokens(api, namespace)) == {names.ROUTER_TOKEN_KEY, "next"})
    after = tokens(api, namespace)
    assert after[names.ROUTER_TOKEN_KEY] == before
    assert after["next"] != before


async def test_a_token_that_another_operator_wrote_first_stays(api, namespace, parts):
    """Two operators, or two workers of one, that have read the same state of the Secret."""
    now, stored = datetime.now(UTC), None
    async with parts() as started:
        writer = RouterSecrets(started.cluster, lambda: now)
        for expected in (
            {"token": "first"},
            {"token": "first", "next": "second"},
            {"token": "second", "previous": "first"},
            {"token": "second"},
        ):
            fresh = "first" if stored is None else "second"
            first, late = (next_step(stored, namespace, now, x).secret for x in (fresh, "late"))
            assert first is not None
            assert late is not None
            await writer._write(first, stored)
            with pytest.raises(KubeApiError) as refused:
                await writer._write(late, stored)
            assert refused.value.code == 409
            assert tokens(api, namespace) == expected
            stored = await started.cluster.get(SECRET, namespace, names.ROUTER_SECRET)
            now += LIFETIME


def test_a_resource_without_routers_has_the_same_objects_as_before(
    operator, api, namespace, chat, until, condition
):
    chat(replicas=2)
    until(lambda: condition("ConfigResolved")[0] == "True")
    for kind in CHILDREN:
        (child,) = api.items(kind, namespace, OWNED_SELECTOR)
        assert "router" not in child["metadata"]["name"]
    for kind in ROUTER_CHILDREN:
        assert api.items(kind, namespace, OWNED_SELECTOR) == []
    # Changes of its engines need the token too.
    (secret,) = api.items(SECRET, namespace)
    assert secret["metadata"]["name"] == names.ROUTER_SECRET


@pytest.mark.parametrize(
    ("router", "field"),
    [
        ({"replicas": 0}, "spec.router.replicas"),
        ({"replicas": 101}, "spec.router.replicas"),
        ({"retries": 11}, "spec.router.retries"),
        ({"retries": -1}, "spec.router.retries"),
        ({"resources": {"requests": {"cpu": "one"}}}, "spec.router.resources.requests"),
        ({"resources": {"requests": {"memory": "2Gi"}}}, "spec.router.resources"),
        ({"replica": 1}, "spec.router.replica"),
    ],
)
def test_routers_that_cannot_be_are_refused_with_their_field(
    router, field, api, namespace, example
):
    manifest = example(router=router)
    manifest["metadata"] = {"name": "chat", "namespace": namespace}
    answer = api.client.post(
        RESOURCE.path(namespace), json=manifest, params={"fieldValidation": "Strict"}
    )
    assert answer.status_code in (400, 422), answer.text
    assert field in answer.json()["message"]
