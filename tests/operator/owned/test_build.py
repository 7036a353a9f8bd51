"""What the operator writes for a resource."""

import json
import os
from pathlib import Path

import pytest
import yaml

from specdecode_api import names
from specdecode_api.boot import EngineBoot
from specdecode_operator import owned
from specdecode_operator.commands import render
from specdecode_operator.objects.resource import parse

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = (
    "specdecode",
    "standalone",
    "dflash",
    "gemma-4-e2b-assistant",
    "gpu",
    "hub",
    "inference-pool",
    "lfm2-1.2b-ngram",
    "llama-3.1-8b-eagle3",
    "llama-3.3-70b-eagle3-tp4",
    "llama-mtp-chain",
    "mimo-7b-mtp",
    "ngram",
    "qwen3.5-4b-mtp",
    "qwen3-4b-dflash",
    "qwen3-4b-dspark",
    "qwen3-8b-peagle",
    "router",
    "vicuna-7b-eagle",
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_children_of_the_examples_are_as_recorded(name):
    path = f"examples/{name}.yaml"
    rendered = render.render(
        path, (ROOT / path).read_text(), "specdecode-engine:test", "specdecode-router:test"
    )
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(rendered)
    assert rendered == golden.read_text(), "UPDATE_GOLDEN=1 rewrites the files: look at the diff"


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_emptydir_has_a_limit(name):
    """But for a cache of models without download.cacheSizeLimit: their size is not known."""
    manifests = yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text())
    pods = [it["spec"]["template"]["spec"] for it in manifests if it["kind"] == "Deployment"]
    empty = [each for pod in pods for each in pod["volumes"] if "emptyDir" in each]
    without = {each["name"] for each in empty if "sizeLimit" not in each["emptyDir"]}
    assert empty
    assert without <= {"model-cache"}


def test_settings_of_ngram_reach_the_boot_file(example, build):
    ngram = {"source": "Trie", "scope": "Model", "maxDepth": 9, "match": "PROB", "capacity": 77}
    speculation = {"algorithm": "NGRAM", "numSteps": 7, "ngram": ngram}
    document = example(speculation=speculation)
    document["spec"]["speculation"].pop("draft", None)
    boot = owned.build(parse(document), "engine:test").boot.speculation
    assert (boot.algorithm, boot.draft_path, boot.num_steps) == ("NGRAM", None, 7)
    found = boot.ngram
    assert (found.source, found.scope, found.depth) == ("trie", "model", 9)
    assert (found.match, found.capacity, found.max_breadth) == ("PROB", 77, 10)


def test_a_fallback_reaches_the_boot_file(example, build):
    draft, ngram = {"uri": "pvc://models/draft"}, {"source": "Trie"}
    speculation = {"algorithm": "EAGLE3", "draft": draft, "fallback": "NGRAM", "ngram": ngram}
    boot = owned.build(parse(example(speculation=speculation)), "engine:test").boot.speculation
    assert (boot.algorithm, boot.fallback, boot.ngram.source) == ("EAGLE3", "NGRAM", "trie")


def test_an_engine_pod_fixes_no_user_and_its_group_can_be_removed(example, build):
    """As OpenShift's SCC restricted-v2 demands; the image sets a numeric user."""
    spec = {"model": {"uri": "hf://org/model@main"}, "download": {"cacheClaim": "models"}}
    context = build(example(**spec))["Deployment"]["spec"]["template"]["spec"]["securityContext"]
    assert {"runAsUser", "runAsGroup"}.isdisjoint(context)
    assert (context["runAsNonRoot"], context["fsGroup"]) == (True, 65532)
    without = {"spec": {"securityContext": {"fsGroup": None, "fsGroupChangePolicy": None}}}
    pod = build(example(**spec, template=without))["Deployment"]["spec"]["template"]["spec"]
    seccomp = {"type": "RuntimeDefault"}
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": seccomp}


def test_a_template_mounts_a_ca_bundle_into_the_download(example, build):
    file = "/etc/specdecode/ca/ca-bundle.crt"
    mount = {"name": "ca", "mountPath": "/etc/specdecode/ca", "readOnly": True}
    volume = {"name": "ca", "configMap": {"name": "internal-ca"}}
    fetch = {
        "name": names.FETCH_CONTAINER,
        "env": [{"name": "SSL_CERT_FILE", "value": file}],
        "volumeMounts": [mount],
    }
    template = {"spec": {"initContainers": [fetch], "volumes": [volume]}}
    built = build(example(model={"uri": "hf://org/model@main"}, template=template))
    pod = built["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["initContainers"]
    assert fetch["env"][0] in container["env"]
    assert mount in container["volumeMounts"]
    assert volume in pod["volumes"]
    assert container["command"] == ["specdecode-engine", "fetch"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_selectors_match_labels_and_never_name_what_varies(name, example, build):
    children = build(example(name, replicas=2))
    pod = children["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = {
        "Deployment": children["Deployment"]["spec"]["selector"]["matchLabels"],
        "Service": children["Service"]["spec"]["selector"],
        "PodDisruptionBudget": children["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    }
    for kind, selector in selectors.items():
        assert selector.items() <= pod.items(), kind
        assert names.LABEL_DEPLOYMENT in selector, kind
        assert names.LABEL_MANAGED_BY not in selector, kind


@pytest.mark.parametrize("name", EXAMPLES)
def test_pods_meet_the_restricted_security_standard(name, example, build):
    pod = build(example(name))["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in [*pod.get("initContainers", ()), *pod["containers"]]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"] is True
    allowed = {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}
    assert all(set(volume) - {"name"} <= allowed for volume in pod["volumes"])


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_child_is_owned_and_distinct(name, example, build):
    for kind, child in build(example(name, replicas=2)).items():
        metadata = child["metadata"]
        (owner,) = metadata["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == ("uid-1", True), kind
        assert "blockOwnerDeletion" not in owner, kind
        assert metadata["labels"][names.LABEL_MANAGED_BY] == names.FIELD_MANAGER, kind
        assert metadata["annotations"][names.ANNOTATION_DESIRED_HASH], kind


def test_the_boot_file_has_the_values_of_the_resource(example, build):
    manifest = example(
        engine={
            "device": "CPU",
            "threads": 3,
            "kvCache": {"size": "1536Mi"},
            "scheduler": {"maxRunningRequests": 7},
        },
        lifecycle={"drainTimeout": "12s"},
        pageSize=64,
    )
    data = build(manifest)["ConfigMap"]["data"]
    assert set(data) == {names.BOOT_FILE_NAME}
    boot = EngineBoot.model_validate_json(data[names.BOOT_FILE_NAME])
    assert boot.model.path == "/models/target/target"
    assert boot.model.served_name == "chat"
    assert boot.speculation.draft_path == "/models/target/eagle3"
    assert boot.memory.page_size == 64
    assert boot.memory.kv_cache_bytes == 1536 * 2**20
    assert boot.scheduling.max_running_requests == 7
    assert boot.server.drain_seconds == 12
    assert (boot.device, boot.threads) == ("cpu", 3)


@pytest.mark.parametrize(
    ("target", "draft", "paths", "sources"),
    [
        (
            "pvc://models/a/b",
            "pvc://models/c",
            ("/models/target/a/b", "/models/target/c"),
            [{"persistentVolumeClaim": {"claimName": "models", "readOnly": True}}],
        ),
        (
            "pvc://one",
            "pvc://two/d",
            ("/models/target", "/models/draft/d"),
            [
                {"persistentVolumeClaim": {"claimName": "one", "readOnly": True}},
                {"persistentVolumeClaim": {"claimName": "two", "readOnly": True}},
            ],
        ),
        (
            "file:///srv/target",
            "file:///srv/draft",
            ("/models/target", "/models/draft"),
            [
                {"hostPath": {"path": "/srv/target", "type": "Directory"}},
                {"hostPath": {"path": "/srv/draft", "type": "Directory"}},
            ],
        ),
    ],
)
def test_checkpoints_are_mounted_read_only_and_once(target, draft, paths, sources, example, build):
    manifest = example(model={"uri": target})
    manifest["spec"]["speculation"]["draft"]["uri"] = draft
    children = build(manifest)
    boot = EngineBoot.model_validate_json(children["ConfigMap"]["data"][names.BOOT_FILE_NAME])
    assert (boot.model.path, boot.speculation.draft_path) == paths
    pod = children["Deployment"]["spec"]["template"]["spec"]
    volumes = [volume for volume in pod["volumes"] if volume["name"].startswith("model-")]
    assert [{k: v for k, v in each.items() if k != "name"} for each in volumes] == sources
    mounts = pod["containers"][0]["volumeMounts"]
    models = [mount for mount in mounts if mount["name"].startswith("model-")]
    assert [mount["name"] for mount in models] == [volume["name"] for volume in volumes]
    assert all(mount["readOnly"] and "subPath" not in mount for mount in models)


HUB = "hf://org/name@v1"
DRAFT = "hf://org/draft"
CACHE = {"name": "model-cache", "mountPath": "/cache"}
LINKS = {"name": "model-links", "mountPath": "/models/fetched"}


@pytest.fixture
def hub_pod(example, build):
    """The pod of a resource whose target, and with `draft` another model, are on the hub."""

    def make(download=None, draft=None, **spec):
        manifest = example("gpu", model={"uri": HUB}, download=download or {}, **spec)
        manifest["spec"]["speculation"]["draft"]["uri"] = draft or "pvc://models/draft"
        children = build(manifest)
        boot = EngineBoot.model_validate_json(children["ConfigMap"]["data"][names.BOOT_FILE_NAME])
        return children["Deployment"]["spec"]["template"]["spec"], boot

    return make


def volume_of(pod, name):
    return next(each for each in pod["volumes"] if each["name"] == name)


def test_a_model_on_the_hub_is_fetched_before_the_engine_starts(hub_pod):
    pod, boot = hub_pod(draft=DRAFT)
    (fetch,) = pod["initContainers"]
    (engine,) = pod["containers"]
    assert fetch["command"] == ["specdecode-engine", "fetch"]
    assert fetch["args"][:4] == ["--target", HUB, "--draft", DRAFT]
    assert fetch["image"] == engine["image"]
    assert (boot.model.path, boot.speculation.draft_path) == (
        "/models/fetched/target",
        "/models/fetched/draft",
    )
    for mount in (CACHE, LINKS):
        assert mount in fetch["volumeMounts"]
        assert {**mount, "readOnly": True} in engine["volumeMounts"]
    offline = {"name": "HF_HUB_OFFLINE", "value": "1"}
    assert offline in engine["env"]
    assert offline not in fetch["env"]


def test_only_what_is_on_the_hub_is_fetched(hub_pod, example, build):
    pod, boot = hub_pod()
    (fetch,) = pod["initContainers"]
    assert fetch["args"][:3] == ["--target", HUB, "--cache"]
    assert boot.speculation.draft_path == "/models/draft/draft"
    assert volume_of(pod, "model-draft")["persistentVolumeClaim"]["claimName"] == "models"
    for name in ("specdecode", "gpu"):
        manifest = example(name, download={"cacheClaim": "x", "tokenSecret": {"name": "y"}})
        template = build(manifest)["Deployment"]["spec"]["template"]["spec"]
        assert "initContainers" not in template
        assert "fsGroup" not in template["securityContext"]
        assert not any(
            each["name"] in ("model-cache", "model-links") for each in template["volumes"]
        )


def test_a_claim_that_is_the_cache_too_is_mounted_once(hub_pod):
    pod, boot = hub_pod({"cacheClaim": "models"}, draft="pvc://models/heads/draft")
    claims = [each for each in pod["volumes"] if "persistentVolumeClaim" in each]
    assert [each["name"] for each in claims] == ["model-cache"]
    assert boot.speculation.draft_path == "/cache/heads/draft"
    pod, boot = hub_pod({"cacheClaim": "other"}, draft="pvc://models/heads/draft")
    assert boot.speculation.draft_path == "/models/draft/heads/draft"


@pytest.mark.parametrize(
    ("download", "source", "group"),
    [
        ({}, {"emptyDir": {}}, None),
        ({"cacheSizeLimit": "40Gi"}, {"emptyDir": {"sizeLimit": "40Gi"}}, None),
        ({"cacheClaim": "hub"}, {"persistentVolumeClaim": {"claimName": "hub"}}, 65532),
    ],
)
def test_the_cache_is_a_claim_or_the_pods_own(download, source, group, hub_pod):
    pod, _ = hub_pod(download)
    assert volume_of(pod, "model-cache") == {"name": "model-cache", **source}
    assert pod["securityContext"].get("fsGroup") == group


def test_the_token_is_named_and_reaches_the_download_only(hub_pod):
    pod, _ = hub_pod({"tokenSecret": {"name": "hub"}, "endpoint": "https://mirror"})
    (fetch,), (engine,) = pod["initContainers"], pod["containers"]
    env = {each["name"]: each for each in fetch["env"]}
    assert env["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "HF_TOKEN"}}
    assert env["HF_ENDPOINT"]["value"] == "https://mirror"
    assert not {"HF_TOKEN", "HF_ENDPOINT"} & {each["name"] for each in engine["env"]}


def test_a_download_asks_for_no_accelerator(hub_pod):
    pod, _ = hub_pod(resources={"limits": {"memory": "8Gi", "nvidia.com/gpu": 1}})
    assert pod["initContainers"][0]["resources"] == {"limits": {"memory": "8Gi"}}
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_pins_stand_beside_the_boot_file_and_replace_no_pod(example):
    resource = parse(example(model={"uri": HUB}))
    commit = "0" * 40
    without, with_pins = (owned.build(resource, "engine:1", pins) for pins in ({}, {HUB: commit}))
    assert without.config_hash == with_pins.config_hash
    changed = [
        (before["kind"], after)
        for before, after in zip(without.children, with_pins.children, strict=True)
        if before != after
    ]
    ((kind, config_map),) = changed
    assert kind == "ConfigMap"
    assert json.loads(config_map["data"][names.PINS_FILE_NAME]) == {HUB: commit}


def test_a_rollout_waits_for_downloads(example, build):
    def deadline(**spec):
        return build(example(**spec))["Deployment"]["spec"]["progressDeadlineSeconds"]

    assert deadline(model={"uri": HUB}) >= deadline() + 3600


def test_a_model_in_an_image_is_mounted_as_it_is(example, build):
    reference = "registry.example/team/llama@sha256:" + "0" * 64
    manifest = example(model={"uri": f"oci://{reference}"})
    children = build(manifest)
    pod = children["Deployment"]["spec"]["template"]["spec"]
    image = {"reference": reference, "pullPolicy": "IfNotPresent"}
    assert volume_of(pod, "model-target") == {"name": "model-target", "image": image}
    boot = EngineBoot.model_validate_json(children["ConfigMap"]["data"][names.BOOT_FILE_NAME])
    assert boot.model.path == "/models/target"
    assert "initContainers" not in pod


def test_a_gpu_is_asked_for_unless_another_accelerator_is(example, build):
    def limits(**resources):
        manifest = example("gpu", resources=resources)
        pod = build(manifest)["Deployment"]["spec"]["template"]["spec"]
        return pod["containers"][0]["resources"]["limits"]

    assert limits() == {"nvidia.com/gpu": "1"}
    assert limits(limits={"memory": "8Gi"}) == {"memory": "8Gi", "nvidia.com/gpu": "1"}
    assert limits(limits={"nvidia.com/mig-1g.10gb": 1}) == {"nvidia.com/mig-1g.10gb": "1"}


@pytest.mark.parametrize("given", [{}, {"limits": {"nvidia.com/gpu": 4, "memory": "512Gi"}}])
def test_a_pod_of_several_ranks_has_as_many_gpus_and_shared_memory_for_them(given, example, build):
    children = build(example("gpu", parallelism={"tensor": 4}, resources=given))
    pod = children["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == given.get("limits", {}) | {"nvidia.com/gpu": "4"}
    assert volume_of(pod, "shm") == {
        "name": "shm",
        "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"},
    }
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    boot = json.loads(children["ConfigMap"]["data"][names.BOOT_FILE_NAME])
    assert boot["parallelism"] == {"tensor": 4}


def test_one_rank_leaves_pods_and_boot_file_as_they_were_without_the_field(example, build):
    plain, written = build(example("gpu")), build(example("gpu", parallelism={"tensor": 1}))
    assert written == plain
    assert "parallelism" not in plain["ConfigMap"]["data"][names.BOOT_FILE_NAME]


def test_another_number_of_ranks_replaces_pods(example, build):
    def config_hash(**parallelism):
        deployment = build(example("gpu", parallelism=parallelism, resources={}))["Deployment"]
        annotations = deployment["spec"]["template"]["metadata"]["annotations"]
        return annotations[names.ANNOTATION_CONFIG_HASH]

    assert len({config_hash(), config_hash(tensor=2), config_hash(tensor=4)}) == 3


def test_ranks_on_a_cpu_share_its_limit_and_ask_for_no_gpu(example, build):
    limits = {"limits": {"cpu": "7", "memory": "8Gi"}}
    children = build(example(parallelism={"tensor": 2}, resources=limits))
    pod = children["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"] == limits
    assert {"name": "OMP_NUM_THREADS", "value": "3"} in container["env"]
    assert volume_of(pod, "shm")["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
    assert "tolerations" not in pod


def test_the_shared_memory_of_ranks_may_be_sized(example, build):
    volumes = [{"name": "shm", "emptyDir": {"sizeLimit": "16Gi"}}]
    template = {"spec": {"volumes": volumes}}
    manifest = example("gpu", parallelism={"tensor": 2}, resources={}, template=template)
    pod = build(manifest)["Deployment"]["spec"]["template"]["spec"]
    assert volume_of(pod, "shm")["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}


def test_compiled_kernels_survive_a_restart_of_the_container(example, build):
    """Triton keeps them below the home folder, which is a volume of the pod."""
    pod = build(example("gpu"))["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert environment["HOME"] == "/tmp"
    assert not {"TRITON_HOME", "TRITON_CACHE_DIR"} & environment.keys()
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
    assert {"name": "tmp", "emptyDir": {}} in pod["volumes"]


def test_a_cpu_pod_asks_for_no_gpu_and_uses_the_threads_it_pays_for(example, build):
    manifest = example(resources={"limits": {"cpu": "2500m"}})
    children = build(manifest)
    (container,) = children["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"cpu": "2500m"}}
    assert {"name": "OMP_NUM_THREADS", "value": "2"} in container["env"]
    assert '"threads": 2' in children["ConfigMap"]["data"][names.BOOT_FILE_NAME]


@pytest.mark.parametrize(
    ("strategy", "pace"),
    [
        ("Auto", {"maxSurge": 1, "maxUnavailable": 0}),
        ("Surge", {"maxSurge": 1, "maxUnavailable": 0}),
        ("InPlace", {"maxSurge": 0, "maxUnavailable": 1}),
    ],
)
@pytest.mark.parametrize("name", ["specdecode", "gpu"])
def test_engines_are_replaced_as_the_spec_requires(name, strategy, pace, example, build):
    manifest = example(name)
    manifest["spec"]["updateStrategy"] = {"type": strategy}
    assert build(manifest)["Deployment"]["spec"]["strategy"]["rollingUpdate"] == pace


def test_a_pod_stops_being_ready_first_and_then_waits(example, build):
    manifest = example(lifecycle={"preStop": "7s"})
    (container,) = build(manifest)["Deployment"]["spec"]["template"]["spec"]["containers"]
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command == ["specdecode-engine", "drain", "--timeout", "7"]


def test_probes_and_the_boot_file_use_the_management_port_and_the_service_does_not(example, build):
    objects = build(example())
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"http": 8000, "management": 8001}
    probes = [container[f"{each}Probe"]["httpGet"] for each in ("startup", "readiness", "liveness")]
    assert [(each["path"], each["port"]) for each in probes] == [
        ("/startup", "management"), ("/ready", "management"), ("/live", "management")
    ]  # fmt: skip
    (port,) = objects["Service"]["spec"]["ports"]
    assert port["targetPort"] == "http"
    boot = json.loads(objects["ConfigMap"]["data"]["boot.json"])
    assert boot["server"]["management_port"] == 8001


@pytest.mark.parametrize(
    ("stated", "seconds"),
    [
        ({}, 90),
        ({"preStop": "7s", "drainTimeout": "90s"}, 7 + 90 + 10),
        ({"drainTimeout": "90s", "terminationGracePeriod": "5m"}, 300),
    ],
)
def test_the_grace_period_leaves_time_for_the_whole_drain(stated, seconds, example, build):
    resource = example()
    resource["spec"]["lifecycle"] = stated
    pod = build(resource)["Deployment"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == seconds


def test_startup_may_take_as_long_as_the_resource_allows(example, build):
    manifest = example(lifecycle={"startupTimeout": "601s"})
    deployment = build(manifest)["Deployment"]["spec"]
    (container,) = deployment["template"]["spec"]["containers"]
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 601
    assert deployment["progressDeadlineSeconds"] >= 1.2 * 601


def test_a_budget_is_there_for_more_than_one_replica(example, build):
    assert "PodDisruptionBudget" not in build(example(replicas=1))
    assert "PodDisruptionBudget" in build(example(replicas=2))


def test_golden_files_name_no_owner():
    # rendered from files, which have no uid: what is applied by hand must not be collected
    for name in EXAMPLES:
        for child in yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text()):
            assert "ownerReferences" not in child["metadata"]
