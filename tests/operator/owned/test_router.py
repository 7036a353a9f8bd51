"""Routers of a resource: their objects, when the Service leads to them, and what the status is."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from specdecode_api import names
from specdecode_api.duration import duration_s
from specdecode_api.v1alpha1 import RouterSpec
from specdecode_operator import owned
from specdecode_operator.commands import render
from specdecode_operator.objects.kinds import ROLE, child_id
from specdecode_operator.objects.observed import Observed
from specdecode_operator.objects.resource import parse
from specdecode_operator.plan.plan import NO_ROUTERS, RefusalReason, plan
from specdecode_operator.settings import Settings
from specdecode_operator.status.outcome import Outcome
from specdecode_operator.status.status import status

SETTINGS = Settings(engine_image="specdecode-engine:test", router_image="specdecode-router:test")
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


@pytest.fixture
def observe(live):
    """A resource with all its objects in place, with or without those of routers."""

    def make(manifest, *, routed=False, is_serving=False, routers=0, pods=()):
        resource = parse(manifest)
        objects = list(owned.build(resource, SETTINGS.engine_image).children)
        if routed:
            image = SETTINGS.router_image
            objects = owned.routed(objects, resource, image, is_serving=is_serving)
            objects = owned.with_token(objects, (), resource.uid, is_wanted=True)
        made = {child_id(each): live(each) for each in objects}
        for child, each in made.items():
            if child.kind == "Deployment":
                count = each["spec"]["replicas"]
                if child.name.endswith("-router"):
                    count = routers
                counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
                each["status"] = {"observedGeneration": 1, **dict.fromkeys(counts, count)}
        return Observed(manifest, made, tuple(pods))

    return make


@pytest.fixture
def engine(config_hash):
    """An engine pod of a manifest's configuration."""

    def make(manifest, *, name="chat-1", has_token=True, is_ready=True):
        volumes = [{"name": "router-token"}] if has_token else []
        annotations = {names.ANNOTATION_CONFIG_HASH: config_hash(manifest)}
        return {
            "metadata": {"name": name, "uid": name, "annotations": annotations},
            "spec": {"volumes": volumes, "containers": []},
            "status": READY if is_ready else {},
        }

    return make


def identities(manifests):
    return [(each["kind"], each["metadata"]["name"]) for each in manifests]


def written(decided):
    return identities(write.manifest for write in decided.writes)


def component_of_service(decided, name="chat"):
    (service,) = (
        write.manifest
        for write in decided.writes
        if (write.manifest["kind"], write.manifest["metadata"]["name"]) == ("Service", name)
    )
    return service["spec"]["selector"][names.LABEL_COMPONENT]


def test_routers_get_an_account_endpoints_a_budget_and_a_deployment(example):
    manifest = example(router={})
    decided = plan(Observed(manifest, {}), SETTINGS)
    name = manifest["metadata"]["name"]
    assert {
        ("ServiceAccount", f"{name}-router"),
        ("Role", f"{name}-router"),
        ("RoleBinding", f"{name}-router"),
        ("Service", f"{name}-engines"),
        ("PodDisruptionBudget", f"{name}-router"),
        ("Deployment", f"{name}-router"),
    } < set(written(decided))
    assert component_of_service(decided, name) == "engine"  # until a router is ready
    assert decided.has_routers


def test_a_single_router_has_no_budget_that_would_block_a_drain(example):
    found = written(plan(Observed(example(router={"replicas": 1}), {}), SETTINGS))
    assert ("PodDisruptionBudget", "chat-router") not in found
    assert ("Deployment", "chat-router") in found


def test_the_routers_pods_are_as_the_spec_has_them(example):
    manifest = example(
        router={"replicas": 3, "retries": 4, "resources": {"limits": {"memory": "2Gi"}}},
        lifecycle={"preStop": "3s", "drainTimeout": "20s"},
        serving={"corsOrigins": ["https://a.example"]},
        template={"spec": {"imagePullSecrets": [{"name": "pull"}]}},
    )
    (deployment,) = (
        write.manifest
        for write in plan(Observed(manifest, {}), SETTINGS).writes
        if write.manifest["metadata"]["name"] == "chat-router"
        and write.manifest["kind"] == "Deployment"
    )
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert deployment["spec"]["replicas"] == 3
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert spec["terminationGracePeriodSeconds"] == 38
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert container["image"] == "specdecode-router:test"
    assert container["resources"]["limits"] == {"memory": "2Gi"}
    assert container["resources"]["requests"] == {"cpu": "200m", "memory": "160Mi"}
    assert {"--retries=4", "--pre-stop=3", "--drain-seconds=20"} < set(container["args"])
    assert container["args"][-2:] == ["--cors-origins", "https://a.example"]


def routers_of(manifest, **settings):
    """The Deployment of routers, or why there is none."""
    decided = plan(Observed(manifest, {}), replace(SETTINGS, **settings))
    if decided.refused is not None:
        return None, decided.refused.sentences
    name = f"{manifest['metadata']['name']}-router"
    kinds = {"Deployment": name}
    found = (write.manifest for write in decided.writes)
    return next(it for it in found if kinds.get(it["kind"]) == it["metadata"]["name"]), ()


def test_the_template_of_routers_places_and_labels_their_pods(example, config_hash):
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    template = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
        "spec": {
            "nodeSelector": {"pool": "cpu"},
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "priorityClassName": "high",
            "topologySpreadConstraints": [spread],
            "imagePullSecrets": [{"name": "more"}],
            "containers": [
                {"name": "router", "env": [{"name": "LANG", "value": "C"}]},
                {"name": "sidecar", "image": "sidecar:1"},
            ],
        },
    }
    engines = {"spec": {"imagePullSecrets": [{"name": "pull"}]}}
    manifest = example(router={"template": template}, template=engines)
    deployment, _ = routers_of(manifest)
    pod = deployment["spec"]["template"]
    assert pod["metadata"]["labels"]["team"] == "a"
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert selector.items() <= pod["metadata"]["labels"].items()
    assert pod["metadata"]["annotations"] == {"note": "b"}
    spec = pod["spec"]
    assert (spec["nodeSelector"], spec["priorityClassName"]) == ({"pool": "cpu"}, "high")
    assert spec["tolerations"] == [{"key": "dedicated", "operator": "Exists"}]
    assert spec["imagePullSecrets"] == [{"name": "pull"}, {"name": "more"}]
    assert spec["topologySpreadConstraints"] == [
        {"labelSelector": {"matchLabels": selector}, **spread}
    ]
    router, sidecar = spec["containers"]
    assert {"name": "LANG", "value": "C"} in router["env"]
    assert sidecar == {"name": "sidecar", "image": "sidecar:1"}
    assert config_hash(manifest) == config_hash(example(router={}, template=engines))


ROUTER = {"name": "router"}


@pytest.mark.parametrize(
    ("pod", "error"),
    [
        ({"containers": [{**ROUTER, "image": "x"}]}, "containers[router].image: cannot be patched"),
        ({"containers": [{**ROUTER, "resources": {}}]}, "patched; use router.resources"),
        ({"containers": [{**ROUTER, "args": []}]}, "the operator sets them; use router"),
        ({"containers": [{**ROUTER, "env": {}}]}, "write a list of objects that have a name"),
        ({"containers": [{**ROUTER, "env": [{"name": "HOME"}]}]}, "env[HOME]: is managed"),
        ({"initContainers": [ROUTER]}, "the name is reserved for containers of the operator"),
        ({"volumes": [{"name": "router-token"}]}, "volumes[router-token]: is managed"),
        ({"serviceAccountName": "x"}, "router.template.spec.serviceAccountName: "),
        ({"terminationGracePeriodSeconds": 1}, "use lifecycle.preStop and lifecycle.drainTimeout"),
        ({"subdomain": "x" * 2**14}, "bytes; at most 16384: move data into a ConfigMap"),
        ({"nodeName": {"a": 1}, "tolerations": 7}, "tolerations: write a list of objects; it is"),
    ],
)
@pytest.mark.parametrize("has_host_access", [True, False])
def test_a_template_of_routers_cannot_set_what_is_managed(pod, error, has_host_access, example):
    manifest = example(router={"template": {"spec": pod}})
    _, (sentence,) = routers_of(manifest, allows_host_access=has_host_access)
    assert sentence.startswith("router.template.spec")
    assert error in sentence


def test_a_template_of_routers_needs_the_operators_permission(example):
    manifest = example(router={"template": {"spec": {"hostNetwork": True}}})
    _, (sentence,) = routers_of(manifest)
    assert sentence.startswith("router.template.spec.hostNetwork: is not allowed; remove it, or")
    assert routers_of(manifest, allows_host_access=True)[0] is not None
    _, (sentence,) = routers_of(manifest, has_template=False, allows_host_access=True)
    assert sentence == (
        "router.template: is disabled by the operator's setting --no-template; remove it"
    )


def test_routers_stay_while_their_template_is_refused(example, observe, engine):
    bad = {"template": {"spec": {"hostNetwork": True}}, "replicas": 3}
    manifest = example(router={})
    observed = observe(manifest, routed=True, is_serving=True, routers=2, pods=[engine(manifest)])
    observed.resource["spec"]["router"] = bad
    observed.resource["status"] = {"configHash": "v1-before"}
    decided = plan(observed, SETTINGS)
    assert decided.refused is not None
    assert (written(decided), decided.prunes) == ([], ())


def test_the_programs_options_are_those_that_its_pods_get(example):
    from specdecode_router.settings import parse_flags

    router = {"timeout": "1m30s", "maxConnections": 64}
    manifest = example(router=router, serving={"corsOrigins": ["https://a.example"]})
    (deployment,) = (
        write.manifest
        for write in plan(Observed(manifest, {}), SETTINGS).writes
        if write.manifest["metadata"]["name"] == "chat-router"
        and write.manifest["kind"] == "Deployment"
    )
    settings = parse_flags(deployment["spec"]["template"]["spec"]["containers"][0]["args"])
    assert (settings.service, settings.namespace) == ("chat-engines", "default")
    assert (settings.deployment, settings.retries) == ("chat", 2)
    assert settings.cors_origins == ("https://a.example",)
    assert (settings.timeout_seconds, settings.max_connections) == (90.0, 64)


def test_defaults_of_the_resource_are_those_of_the_program():
    from specdecode_router.settings import RouterSettings

    spec, program = RouterSpec(), RouterSettings()
    assert spec.retries == program.retries
    assert spec.max_connections == program.max_connections
    assert duration_s(spec.timeout) == program.timeout_seconds


def test_only_with_routers_the_configuration_has_the_token(example, build):
    for manifest, count in ((example(), 0), (example(router={}), 1)):
        pod = build(manifest)["Deployment"]["spec"]["template"]["spec"]
        volumes = [each for each in pod["volumes"] if each["name"] == "router-token"]
        mounts = pod["containers"][0]["volumeMounts"]
        assert len(volumes) == count
        assert [each["name"] for each in mounts].count("router-token") == count
        assert all(each["secret"]["optional"] for each in volumes)


@pytest.mark.parametrize(
    ("routers", "engines", "leads_to"),
    [
        (1, [True], "router"),
        (2, [True, True], "router"),
        (0, [True], "engine"),
        (1, [], "engine"),
        (1, [False], "engine"),
        (1, [True, False], "engine"),
    ],
)
def test_the_service_leads_to_routers_once_they_can_serve(
    routers, engines, leads_to, example, observe, engine
):
    manifest = example(router={})
    pods = [engine(manifest, name=f"chat-{i}", has_token=it) for i, it in enumerate(engines)]
    observed = observe(manifest, routed=True, routers=routers, pods=pods)
    decided = plan(observed, SETTINGS)
    expected = [("Service", "chat")] if leads_to == "router" else []
    assert written(decided) == expected
    assert all(component_of_service(decided) == leads_to for _ in expected)


def test_the_service_stays_with_routers_while_nothing_is_ready(example, observe):
    observed = observe(example(router={}), routed=True, is_serving=True)
    decided = plan(observed, SETTINGS)
    assert (decided.writes, decided.prunes) == ((), ())


def test_a_selector_that_somebody_edited_is_repaired(example, observe, engine):
    manifest = example(router={})
    observed = observe(manifest, routed=True, is_serving=True, routers=2, pods=[engine(manifest)])
    child = next(each for each in observed.children if each == ("Service", "chat"))
    observed.children[child]["spec"]["selector"][names.LABEL_INSTANCE] = "other"
    assert written(plan(observed, SETTINGS)) == [("Service", "chat")]


def test_without_routers_the_service_leads_to_engines_and_the_rest_is_removed(example, observe):
    observed = observe(example(router={}), routed=True, is_serving=True, routers=2)
    del observed.resource["spec"]["router"]
    observed.resource["status"] = {"configHash": "v1-before"}
    decided = plan(observed, SETTINGS)
    assert component_of_service(decided) == "engine"
    assert set(identities(decided.prunes)) == {
        ("ServiceAccount", "chat-router"),
        ("Role", "chat-router"),
        ("RoleBinding", "chat-router"),
        ("Service", "chat-engines"),
        ("PodDisruptionBudget", "chat-router"),
        ("Deployment", "chat-router"),
    }
    assert not decided.has_routers


def test_an_object_of_somebody_else_with_a_routers_name_is_not_removed(example, observe):
    observed = observe(example(router={}), routed=True)
    del observed.resource["spec"]["router"]
    observed.resource["status"] = {"configHash": "v1-before"}
    child = next(each for each in observed.children if each.kind == ROLE.kind)
    observed.children[child]["metadata"]["ownerReferences"][0]["uid"] = "uid-2"
    kinds = {kind for kind, _ in identities(plan(observed, SETTINGS).prunes)}
    assert "RoleBinding" in kinds
    assert ROLE.kind not in kinds


def test_an_operator_that_permits_no_routers_refuses_them(example):
    settings = replace(SETTINGS, has_routers=False)
    decided = plan(Observed(example(router={}), {}), settings)
    assert decided.refused is not None
    assert decided.refused.reason is RefusalReason.INVALID
    assert decided.refused.sentences == (NO_ROUTERS,)
    assert plan(Observed(example(), {}), settings).refused is None


def test_a_rendered_service_leads_to_routers():
    text = render.render(
        "router.yaml",
        "apiVersion: specdecode.io/v1alpha1\nkind: SpecDecodeDeployment\n"
        "metadata: {name: chat}\nspec: {model: {uri: 'hf://org/model@main'}, router: {}}\n",
        "engine:1",
        "router:1",
    )
    assert "image: router:1" in text
    assert text.count("app.kubernetes.io/component: router") > 3


def shown(observed, outcome=Outcome()):  # noqa: B008
    answer = status(observed, plan(observed, SETTINGS), outcome, NOW)
    return answer, {each["type"]: each for each in answer["conditions"]}


@pytest.mark.parametrize(
    ("is_serving", "routers", "has_token", "error", "reason", "is_ready"),
    [
        (True, 2, True, "", "RoutersServe", "True"),
        (True, 0, True, "", "RoutersNotReady", "False"),
        (False, 0, True, "", "RoutersStarting", "True"),
        (False, 0, True, "secrets is forbidden", "TokenNotWritten", "True"),
        (True, 2, True, "secrets is forbidden", "RoutersServe", "True"),
        (False, 1, False, "", "WaitingForEngines", "True"),
        (False, 1, True, "", "Switching", "True"),
    ],
)
def test_the_status_shows_whether_routers_serve(
    is_serving, routers, has_token, error, reason, is_ready, example, observe, engine
):
    manifest = example(router={})
    pods = [engine(manifest, has_token=has_token)]
    observed = observe(manifest, routed=True, is_serving=is_serving, routers=routers, pods=pods)
    answer, conditions = shown(observed, Outcome(token_error=error))
    assert answer["router"] == {"readyReplicas": routers, "isServing": is_serving}
    assert conditions["RouterReady"]["reason"] == reason
    assert (conditions["RouterReady"]["status"] == "True") == (reason == "RoutersServe")
    assert conditions["Ready"]["status"] == is_ready
    is_cut_off = reason == "RoutersNotReady"
    assert (conditions["Available"]["status"] == "False") == is_cut_off
    assert (conditions["Degraded"]["reason"] == "RoutersNotReady") == is_cut_off
    assert (conditions["Reconciling"]["status"] == "True") == (reason != "RoutersServe")


def test_routable_are_the_engines_behind_the_routers(example, observe):
    observed = observe(example(router={}), routed=True, is_serving=True, routers=1)

    def slice_of(service, *uids):
        endpoints = [{"targetRef": {"uid": uid}, "conditions": {"ready": True}} for uid in uids]
        labels = {"kubernetes.io/service-name": service}
        return {"metadata": {"labels": labels}, "endpoints": endpoints}

    slices = (slice_of("chat", "router-1"), slice_of("chat-engines", "a", "b", "c"))
    answer, _ = shown(replace(observed, slices=slices))
    assert answer["routableReplicas"] == 3


def test_a_status_without_routers_has_no_part_about_them(example, observe):
    answer, conditions = shown(observe(example()))
    assert answer.get("router") is None
    assert "RouterReady" not in conditions
