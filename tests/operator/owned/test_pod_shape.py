"""Where pods may run, and the template of the user that is merged."""

import random
from typing import Any

import pytest

from specdecode_api import names
from specdecode_operator import owned
from specdecode_operator.objects import resource
from specdecode_operator.objects.observed import Observed
from specdecode_operator.objects.pod_defaults import pod_defaults
from specdecode_operator.objects.resource import ResourceError
from specdecode_operator.owned.patch import MAX_BYTES
from specdecode_operator.plan.plan import plan
from specdecode_operator.settings import Settings

ENGINE = {"name": "engine"}


@pytest.fixture
def pod_of(example, build):
    """The pod's template for a spec and metadata of the user's template."""

    def of(pod, name="specdecode", metadata=None, **spec):
        template = {"spec": pod, "metadata": metadata or {}}
        return build(example(name, template=template, **spec))["Deployment"]["spec"]["template"]

    return of


@pytest.fixture
def refused(example):
    """The errors about a patch of the pod's spec."""

    def sentences(patch, name="specdecode"):
        manifest = example(name, template={"spec": patch})
        with pytest.raises(ResourceError) as refusal:
            owned.build(resource.parse(manifest), "engine:test")
        return refusal.value.sentences

    return sentences


def test_what_nobody_asks_for_is_not_written(pod_of):
    spec = pod_of({})["spec"]
    absent = {"nodeSelector", "tolerations", "affinity", "topologySpreadConstraints"}
    absent |= {"runtimeClassName", "priorityClassName", "imagePullSecrets"}
    assert absent.isdisjoint(spec)


def test_pods_are_placed_as_the_spec_requires(pod_of):
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"a": [1]}}}
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    pod = {
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "affinity": affinity,
        "topologySpreadConstraints": [spread],
        "runtimeClassName": "nvidia",
        "priorityClassName": "high",
        "imagePullSecrets": [{"name": "registry"}],
    }
    template = pod_of(pod, "gpu")
    spec = template["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert spec["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "dedicated", "operator": "Exists"},
    ]
    assert spec["affinity"] == affinity
    (written,) = spec["topologySpreadConstraints"]
    selector = written.pop("labelSelector")["matchLabels"]
    assert written == spread
    assert selector.items() <= template["metadata"]["labels"].items()
    assert (spec["runtimeClassName"], spec["priorityClassName"]) == ("nvidia", "high")
    assert spec["imagePullSecrets"] == [{"name": "registry"}]


def test_a_part_of_an_accelerator_takes_the_place_of_a_whole_one(pod_of):
    limits = {"nvidia.com/mig-1g.10gb": 1}
    spec = pod_of({}, "gpu", resources={"limits": limits})["spec"]
    assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": "1"}


@pytest.mark.parametrize("name", ["specdecode", "hub"])
def test_variables_reach_every_container_of_the_engines_image(name, pod_of):
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    env = [{"name": "HTTPS_PROXY", "value": ""}, {"name": "KEY", "valueFrom": source}]
    fetch = {"initContainers": [{"name": "fetch", "env": env}]} if name == "hub" else {}
    spec = pod_of({"containers": [{**ENGINE, "env": env}], **fetch}, name)["spec"]
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        assert container["env"][-2:] == [
            {"name": "HTTPS_PROXY", "value": ""},
            {"name": "KEY", "valueFrom": source},
        ]


def test_a_patch_merges_objects_and_things_with_names(pod_of):
    patch = {
        "securityContext": {"runAsUser": None, "supplementalGroups": [7]},
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["hub"]}],
        "containers": [
            {**ENGINE, "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
            {"name": "sidecar", "image": "sidecar:1"},
        ],
        "volumes": [
            {"name": "data", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
        ],
    }
    metadata = {"labels": {"team": "a"}, "annotations": {"note": "b"}}
    plain, template = pod_of({}), pod_of(patch, metadata=metadata)
    spec, before = template["spec"], plain["spec"]
    assert spec["securityContext"] == {
        **{k: v for k, v in before["securityContext"].items() if k != "runAsUser"},
        "supplementalGroups": [7],
    }
    assert spec["hostAliases"] == patch["hostAliases"]
    engine, sidecar = spec["containers"]
    assert engine == {
        **before["containers"][0],
        "volumeMounts": [
            *before["containers"][0]["volumeMounts"],
            {"name": "data", "mountPath": "/data"},
        ],
    }
    assert sidecar == {"name": "sidecar", "image": "sidecar:1"}
    shapes = {volume["name"]: volume for volume in spec["volumes"]}
    assert list(shapes) == [*(each["name"] for each in before["volumes"]), "data"]
    assert shapes["tmp"]["emptyDir"] == {"sizeLimit": "1Gi"}
    labels = template["metadata"]["labels"]
    assert labels == plain["metadata"]["labels"] | {"team": "a"}
    assert template["metadata"]["annotations"]["note"] == "b"
    assert names.ANNOTATION_CONFIG_HASH in template["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("patch", "part"),
    [
        ({"restartPolicy": "Never"}, "restartPolicy: cannot be patched; it is Always"),
        ({"terminationGracePeriodSeconds": 1}, "use lifecycle.terminationGracePeriod"),
        ({"containers": None}, "containers: write a list of objects that have a name"),
        ({"containers": [{"image": "x"}]}, "write a list of objects that have a name"),
        ({"volumes": {"name": "x"}}, "volumes: write a list of objects that have a name"),
        ({"containers": [{**ENGINE, "command": ["sh"]}]}, "containers[engine].command: cannot"),
        ({"containers": [{**ENGINE, "ports": []}]}, "containers[engine].ports: cannot be patched"),
        ({"containers": [{**ENGINE, "livenessProbe": None}]}, "livenessProbe: cannot be patched"),
        ({"containers": [{**ENGINE, "image": "x"}]}, "image: cannot be patched; use engine.image"),
        ({"containers": [{**ENGINE, "env": {}}]}, "env: write a list of objects that have a name"),
        (
            {"containers": [{**ENGINE, "env": [{"name": "HF_TOKEN", "value": "x"}]}]},
            "containers[engine].env[HF_TOKEN]: is managed by the operator; use download.tokenS",
        ),
        (
            {"containers": [{**ENGINE, "env": [{"name": "OMP_NUM_THREADS", "value": "2"}]}]},
            "use engine.threads",
        ),
        (
            {"containers": [{**ENGINE, "volumeMounts": [{"name": "x", "mountPath": "/tmp/"}]}]},
            "volumeMounts: /tmp/ is managed by the operator; use another path",
        ),
        ({"containers": [{**ENGINE, "volumeMounts": {}}]}, "volumeMounts: write a list of objects"),
        (
            {"containers": [{"name": "fetch"}]},
            "the name is reserved for containers of the operator",
        ),
        (
            {"volumes": [{"name": "boot", "emptyDir": {}}]},
            "volumes[boot]: is managed by the operator",
        ),
        (
            {"volumes": [{"name": "model-target"}]},
            "volumes[model-target]: is managed by the operator",
        ),
        ({"subdomain": "x" * MAX_BYTES}, f"bytes; at most {MAX_BYTES}: move data into a ConfigMap"),
    ],
)
def test_a_patch_of_what_the_operator_answers_for_is_refused(patch, part, refused):
    (sentence,) = refused(patch)
    assert sentence.startswith("template.spec")
    assert part in sentence


SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
OBJECTS, NAMED = "write a list of objects", "write a list of objects that have a name"
DASH = "it is an object: put a dash before its first field"
OF_ENGINE = "containers[engine]"
MISSHAPEN = [
    ({"topologySpreadConstraints": SPREAD}, f"topologySpreadConstraints: {OBJECTS}; {DASH}"),
    ({"topologySpreadConstraints": ["zone"]}, f"[0]: {OBJECTS}; it is a text"),
    ({"topologySpreadConstraints": [SPREAD, None]}, f"[1]: {OBJECTS}; it is null"),
    ({"topologySpreadConstraints": True}, f"{OBJECTS}; it is a boolean"),
    ({"tolerations": {"key": "a"}}, f"tolerations: {OBJECTS}; {DASH}"),
    ({"tolerations": [7]}, f"tolerations[0]: {OBJECTS}; it is a number"),
    ({"securityContext": [1]}, "securityContext: write an object; it is a list"),
    ({"containers": {"name": "x"}}, f"containers: {NAMED}; {DASH}"),
    ({"containers": [{"name": ["x"]}]}, f"containers[0]: {NAMED}; its name is a list"),
    ({"initContainers": "x"}, f"initContainers: {NAMED}; it is a text"),
    ({"volumes": [{"emptyDir": {}}]}, f"volumes[0]: {NAMED}; its name is missing"),
    ({"imagePullSecrets": ["registry"]}, f"imagePullSecrets[0]: {NAMED}; it is a text"),
    ({"hostAliases": [{"ip": 1}]}, "hostAliases[0]: write a list of objects that have a ip"),
    ({"containers": [{**ENGINE, "env": [1]}]}, f"{OF_ENGINE}.env[0]: {NAMED}; it is a number"),
    ({"containers": [{**ENGINE, "securityContext": 2.5}]}, "write an object; it is a number"),
    (
        {"containers": [{**ENGINE, "volumeMounts": [{"mountPath": ["/x"]}]}]},
        "volumeMounts[0]: write a list of objects that have a mountPath; its mountPath is a list",
    ),
]


@pytest.mark.parametrize(("patch", "part"), MISSHAPEN)
def test_a_field_of_another_type_is_refused_with_its_place(patch, part, refused):
    (sentence,) = refused(patch)
    assert sentence.startswith("template.spec.")
    assert part in sentence


VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    2.5,
    "x",
    [],
    ["x"],
    [None],
    [[]],
    [{}],
    [{"name": "x"}],
    {},
    {"a": 1},
)
FIELDS = (
    "containers", "initContainers", "volumes", "tolerations", "topologySpreadConstraints",
    "securityContext", "hostAliases", "imagePullSecrets", "nodeSelector", "affinity",
    "serviceAccountName", "hostNetwork", "dnsConfig", "runtimeClassName",
)  # fmt: skip
OF_CONTAINERS = (
    "name", "env", "volumeMounts", "securityContext", "envFrom", "resizePolicy", "workingDir",
)  # fmt: skip
STRICT = Settings(
    engine_image="e",
    allows_host_access=False,
    pod_defaults=pod_defaults('{"runAsUser": 1000}', '{"runAsGroup": 7}', "ca/bundle.crt"),
)


def random_template(rng):
    """A pod's spec in which fields that the operator reads have values of any type."""
    pod = {field: rng.choice(VALUES) for field in rng.sample(FIELDS, rng.randint(0, 3))}
    if rng.random() < 0.6:
        own = {field: rng.choice(VALUES) for field in rng.sample(OF_CONTAINERS, 2)}
        place = rng.choice(("containers", "initContainers"))
        pod[place] = [{"name": rng.choice(("engine", "fetch", "x")), **own}]
    return pod


@pytest.mark.parametrize("name", ["specdecode", "hub", "gpu"])
def test_any_template_is_carried_out_or_refused_by_its_field(name, example):
    rng = random.Random(name)
    seen = set()
    for number in range(40):
        template = {"spec": random_template(rng)}
        settings = STRICT if number % 2 else Settings(engine_image="e", allows_host_access=True)
        decided = plan(Observed(example(name, template=template), {}), settings)
        assert decided.failures == (), template
        if decided.refused is not None:
            assert all(each.startswith("template.spec") for each in decided.refused.sentences)
        seen.add(decided.refused is None)
    assert seen == {True, False}


@pytest.mark.parametrize("where", ["pod", "engine"])
def test_a_security_context_may_be_removed_next_to_the_administrators(where, example):
    removed = {"securityContext": None}
    pod = removed if where == "pod" else {"containers": [{**ENGINE, **removed}]}
    decided = plan(Observed(example(template={"spec": pod}), {}), STRICT)
    (workload,) = (
        each.manifest for each in decided.writes if each.manifest["kind"] == "Deployment"
    )
    spec = workload["spec"]["template"]["spec"]
    held = spec if where == "pod" else spec["containers"][0]
    wanted = {"runAsUser": 1000} if where == "pod" else {"runAsGroup": 7}
    assert held["securityContext"] == wanted


def test_the_container_that_fetches_is_the_operators_too(refused):
    (sentence,) = refused({"initContainers": [{"name": "fetch", "args": []}]}, "hub")
    assert "initContainers[fetch].args: cannot be patched" in sentence


def test_every_fault_of_a_patch_is_listed(refused):
    faults = refused(
        {"restartPolicy": "Never", "containers": [{**ENGINE, "args": [], "ports": []}]}
    )
    assert len(faults) == 3


def test_keys_of_the_api_are_a_volume_and_no_variable(example, build):
    made = build(example(serving={"apiKeys": {"secretName": "clients", "key": "team"}}))
    spec = made["Deployment"]["spec"]["template"]["spec"]
    volume = next(each for each in spec["volumes"] if each["name"] == "api-keys")
    assert volume["secret"] == {
        "secretName": "clients",
        "optional": True,
        "items": [{"key": "team", "path": "team"}],
    }
    mount = next(m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "api-keys")
    assert mount == {"name": "api-keys", "mountPath": names.API_KEYS_FOLDER, "readOnly": True}
    assert f'"api_key_path": "{names.API_KEYS_FOLDER}"' in made["ConfigMap"]["data"]["boot.json"]
    assert all("clients" not in str(each) for each in spec["containers"][0]["env"])


NODE = {"hostPath": {"path": "/"}}
ACCESS = {
    "serviceAccountName": {"serviceAccountName": "admin"},
    "automountServiceAccountToken": {"automountServiceAccountToken": True},
    "hostNetwork": {"hostNetwork": True},
    "hostPID": {"hostPID": True},
    "volumes[node].hostPath": {"volumes": [{"name": "node", **NODE}]},
    "containers[x].securityContext.privileged": {
        "containers": [{"name": "x", "image": "x", "securityContext": {"privileged": True}}]
    },
}


def planned(example, patch, **settings):
    manifest = example(template={"spec": patch})
    observed = Observed(manifest, {})
    return plan(observed, Settings(engine_image="engine:test", **settings))


@pytest.mark.parametrize(("place", "patch"), ACCESS.items(), ids=ACCESS)
def test_identity_and_node_are_refused_unless_the_operator_allows_them(place, patch, example):
    refused = planned(example, patch).refused
    assert refused is not None
    (sentence,) = refused.sentences
    assert sentence.startswith(f"template.spec.{place}: is not allowed; remove it, or run")
    assert "--template-host-access" in sentence
    allowed = planned(example, patch, allows_host_access=True)
    assert allowed.refused is None
    assert allowed.writes


def test_an_access_that_is_denied_explicitly_is_no_access(example):
    assert planned(example, {"hostNetwork": False, "volumes": []}).refused is None


@pytest.mark.parametrize(
    "template", [{"spec": {"nodeSelector": {"a": "b"}}}, {"metadata": {"labels": {"a": "b"}}}]
)
def test_a_template_can_be_forbidden_as_a_whole(template, example):
    settings = Settings(engine_image="engine:test", has_template=False)
    observed = Observed(example(template=template), {})
    refused = plan(observed, settings).refused
    assert refused is not None
    assert "--no-template; remove it" in refused.sentences[0]
    assert plan(Observed(example(), {}), settings).refused is None
