"""What replaces pods and what does not."""

import copy
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdecode_api.base import Change
from specdecode_api.boot import EngineBoot
from specdecode_api.descriptions import ANY_ITEM, ANY_KEY, field_descriptions
from specdecode_api.schema import resource_schema
from specdecode_operator import owned
from specdecode_operator.objects import resource
from specdecode_operator.owned import boot_file
from specdecode_operator.owned.hashes import HASH_VERSION, canonical, digest
from tests.operator.conftest import ENGINE_IMAGE

BASE = {
    "model": {"uri": "hf://org/target"},
    "download": {"tokenSecret": {"name": "hub"}},
    "serving": {"apiKeys": {"secretName": "keys"}},
    "speculation": {
        "algorithm": "EAGLE3",
        "draft": {"uri": "pvc://models/eagle3"},
        "topk": 2,
        "numSteps": 3,
        "adaptive": {"policy": "Ema", "batchSizes": [{"from": 1, "candidateSteps": [1, 3]}]},
    },
}
VLLM = {
    "model": BASE["model"],
    "engine": {"runtime": "VLLM"},
    "router": {},
    "rollout": {"mode": "Manual"},
}
ONLY_VLLM = ("pipeline", "data", "expert", "runtime", "extraArgs")
WITHOUT_MODEL = BASE | {"speculation": {"algorithm": "NGRAM", "ngram": {"source": "Suffix"}}}
_ADAPTIVE = ("speculation", "adaptive")
_ENTRY = ("speculation", "adaptive", "batchSizes", 0)

# One other value for every field of the spec, by path.
OTHERS = {
    ("model", "uri"): "pvc://models/other",
    ("model", "servedName"): "other",
    ("model", "dtype"): "float32",
    ("model", "quantization"): "Int4",
    ("model", "sumOrder"): "Inputs",
    ("model", "contextLength"): 4096,
    ("download", "cacheClaim"): "models",
    ("download", "cacheSizeLimit"): "40Gi",
    ("download", "tokenSecret", "name"): "other",
    ("download", "tokenSecret", "key"): "other",
    ("download", "endpoint"): "https://mirror",
    ("pageSize",): 32,
    ("speculation", "algorithm"): "STANDALONE",
    ("speculation", "draft"): {"uri": "pvc://models/third"},
    ("speculation", "draft", "uri"): "pvc://models/other",
    ("speculation", "topk"): 3,
    ("speculation", "numSteps"): 1,
    ("speculation", "numDraftTokens"): 5,
    ("speculation", "fallback"): "NGRAM",
    ("speculation", "ngram"): {"source": "Prompt"},
    ("speculation", "ngram", "source"): "Trie",
    ("speculation", "ngram", "scope"): "Model",
    ("speculation", "ngram", "maxDepth"): 12,
    ("speculation", "ngram", "minMatch"): 2,
    ("speculation", "ngram", "minBreadth"): 2,
    ("speculation", "ngram", "maxBreadth"): 4,
    ("speculation", "ngram", "match"): "PROB",
    ("speculation", "ngram", "capacity"): 1000,
    ("speculation", "ngram", "minTokenProbability"): 0.2,
    ("speculation", "ngram", "maxSpecFactor"): 2,
    ("speculation", "adaptive", "policy"): "Static",
    (*_ADAPTIVE, "objective"): "InterTokenLatency",
    (*_ADAPTIVE, "maxInterTokenMs"): 30,
    ("speculation", "adaptive", "batchSizes"): [{"from": 2, "candidateSteps": [1, 3]}],
    (*_ENTRY, "from"): 3,
    (*_ENTRY, "candidateSteps"): [1, 3, 5],
    (*_ENTRY, "upHysteresis"): 0.5,
    (*_ENTRY, "downHysteresis"): -0.5,
    (*_ENTRY, "ceilingCoeff"): 1.5,
    (*_ENTRY, "emaAlpha"): 0.3,
    (*_ENTRY, "verifyTokens"): 2,
    (*_ENTRY, "updateInterval"): 7,
    (*_ENTRY, "warmupBatches"): 1,
    ("engine", "scheduler", "maxRunningRequests"): 8,
    ("engine", "scheduler", "maxQueuedRequests"): 8,
    ("engine", "scheduler", "chunkedPrefillTokens"): 128,
    ("engine", "kvCache", "size"): "1Gi",
    ("engine", "kvCache", "memoryFraction"): "0.7",
    ("engine", "kvCache", "dtype"): "fp8_e4m3",
    ("engine", "kvCache", "prefixCaching"): False,
    ("engine", "attentionBackend"): "Torch",
    ("engine", "graphs", "mode"): "Eager",
    ("engine", "graphs", "batchSizes"): [1, 2],
    ("engine", "graphs", "memory"): "1Gi",
    ("engine", "graphs", "captureTimeout"): "1m",
    ("engine", "overlap"): False,
    ("engine", "config"): {"cpu_affinity": "0-3"},
    ("engine", "upgradePolicy"): "Roll",
    ("engine", "threads"): 2,
    ("parallelism", "tensor"): 2,
    ("parallelism", "pipeline"): 2,
    ("parallelism", "data"): 2,
    ("parallelism", "expert"): True,
    ("engine", "runtime"): "Specdecode",
    ("engine", "extraArgs"): ["--trust-remote-code"],
    ("inferencePool", "endpointPickerRef", "name"): "other",
    ("inferencePool", "endpointPickerRef", "failureMode"): "FailOpen",
    ("inferencePool", "endpointPickerRef", "port", "number"): 9100,
    ("router",): {},
    ("router", "replicas"): 3,
    ("router", "resources", "limits"): {"memory": "2Gi"},
    ("router", "resources", "requests"): {"memory": "1Gi"},
    ("router", "retries"): 3,
    ("router", "timeout"): "5s",
    ("router", "maxConnections"): 7,
    ("router", "template", "metadata", "labels"): {"team": "a"},
    ("router", "template", "metadata", "annotations"): {"note": "a"},
    ("router", "template", "spec"): {"nodeSelector": {"pool": "cpu"}},
    ("serving", "requestLabels"): ["code"],
    ("serving", "corsOrigins"): ["*"],
    ("serving", "page"): True,
    ("serving", "responses", "store"): "256Mi",
    ("serving", "tracing", "endpoint"): "http://collector:4318",
    ("serving", "toolParser"): "hermes",
    ("serving", "reasoningParser"): "None",
    ("lifecycle", "preStop"): "1s",
    ("lifecycle", "drainTimeout"): "30s",
    ("lifecycle", "terminationGracePeriod"): "2m",
    ("lifecycle", "startupTimeout"): "1m",
    ("lifecycle", "stepTimeout"): "1m",
    ("rollout", "mode"): "Auto",
    ("rollout", "editPolicy"): "Guarded",
    ("rollout", "strategy"): "Canary",
    ("rollout", "guard", "minGain"): "1%",
    ("rollout", "guard", "margin"): "1%",
    ("rollout", "guard", "minRequests"): 10,
    ("rollout", "guard", "minStratumRequests"): 10,
    ("rollout", "guard", "minDuration"): "1m",
    ("rollout", "guard", "maxDuration"): "1h",
    ("rollout", "guard", "warmUp"): "1s",
    ("rollout", "guard", "coolDown"): "1s",
    ("rollout", "canary", "replicas"): 2,
    ("rollout", "canary", "baseline"): "Stable",
    ("rollout", "switchback", "block"): "1m",
    ("rollout", "switchback", "washout"): "1s",
    ("rollout", "switchback", "minPairs"): 2,
    ("rollout", "exploration", "maxCandidateShare"): "1%",
    ("rollout", "exploration", "maxTrialsPerDay"): 1,
    ("replicas",): 3,
    ("engine", "device"): "CPU",
    ("resources", "limits"): {"memory": "8Gi"},
    ("resources", "requests"): {"memory": "1Gi"},
    ("engine", "image"): "engine:other",
    ("engine", "imagePullPolicy"): "Always",
    ("serving", "apiKeys", "secretName"): "other",
    ("serving", "apiKeys", "key"): "other",
    ("updateStrategy", "type"): "InPlace",
    ("updateStrategy", "maxSurge"): 2,
    ("updateStrategy", "maxUnavailable"): "50%",
    ("updateStrategy", "surgeTimeout"): "1m",
    ("template", "metadata", "labels"): {"team": "a"},
    ("template", "metadata", "annotations"): {"note": "a"},
    ("template", "spec"): {"hostNetwork": True},
}


CHANGES = {
    tuple("1" if part == ANY_KEY else part for part in row.path[1:] if part != ANY_ITEM): row.change
    for row in field_descriptions(resource_schema())
    if row.path[0] == "spec" and row.change
}
"""Every field of a spec with the change that the contract assigns to it."""


def edited(spec, path, value):
    spec = copy.deepcopy(spec)
    place = spec
    for part in path[:-1]:
        place = place[part] if isinstance(part, int) else place.setdefault(part, {})
    place[path[-1]] = value
    return spec


def test_every_field_of_the_contract_is_tried():
    assert set(map(without_items, OTHERS)) == set(CHANGES) - {("parallelism", "nodes")}, "1 alone"


def without_items(path):
    return tuple(part for part in path if not isinstance(part, int))


DRAFT = ("speculation", "draft")


@pytest.mark.parametrize("path", sorted(OTHERS, key=str), ids=lambda it: ".".join(map(str, it)))
def test_pods_are_replaced_exactly_for_fields_that_need_it(path, example):
    """A folder of the same claim for the draft is another configuration of the same pods."""
    manifest = example()
    base = WITHOUT_MODEL if "ngram" in path else BASE
    base = VLLM if path[-1] in ONLY_VLLM else base
    base = base | {"router": {}} if path[0] == "router" and len(path) > 1 else base
    if path[0] == "inferencePool":
        base = base | {"inferencePool": {"endpointPickerRef": {"name": "picker"}}}
    if path[-1] == "verifyTokens":  # for chains, and not under policy Ema
        base = edited(edited(base, ("speculation", "topk"), 1), (*_ADAPTIVE, "policy"), "Goodput")
    changed = edited(base, path, OTHERS[path])
    if path[-1] in ("objective", "maxInterTokenMs"):  # neither is valid alone
        base = edited(base, _ADAPTIVE, {"policy": "Goodput"})
        changed = edited(base, _ADAPTIVE, {"objective": "InterTokenLatency", "maxInterTokenMs": 30})
        if path[-1] == "maxInterTokenMs":
            base = edited(changed, path, 20)
    before, after = (
        owned.build(resource.parse({**manifest, "spec": spec}), ENGINE_IMAGE)
        for spec in (base, changed)
    )
    needs_restart = CHANGES[without_items(path)] == Change.RESTART
    is_draft = path[:2] == DRAFT
    assert (before.config_hash != after.config_hash) == (needs_restart or is_draft)
    assert (before.exchange_hash != after.exchange_hash) == (needs_restart and not is_draft)


FIRST = {
    "specdecode": "v1-c47f8da3e5b85a84",
    "standalone": "v1-1dcf824f00d834a9",
    "gpu": "v1-9f965371966561b5",
    "hub": "v1-7cc878c09d96c111",
}
"""Hashes as an earlier operator stamped them on pods that may still run."""


@pytest.mark.parametrize("name", FIRST)
def test_an_upgrade_of_the_operator_replaces_no_pod(name, example, config_hash):
    manifest = example(name)
    # A default of then, which the API server of then wrote into what it stored.
    grace_s = 150 if name == "gpu" else 90
    lifecycle = manifest["spec"].get("lifecycle", {})
    manifest["spec"]["lifecycle"] = {"terminationGracePeriod": f"{grace_s}s", **lifecycle}
    assert config_hash(manifest) == FIRST[name]


def test_another_default_image_replaces_pods(example):
    from specdecode_operator import owned
    from specdecode_operator.objects import resource

    parsed = resource.parse(example())
    hashes = {owned.build(parsed, image).config_hash for image in ("engine:1", "engine:2")}
    assert len(hashes) == 2


def test_the_hash_names_its_version(example, config_hash):
    assert config_hash(example()).startswith(f"{HASH_VERSION}-")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def shuffled(data, rng):
    if isinstance(data, dict):
        items = [(key, shuffled(value, rng)) for key, value in data.items()]
        rng.shuffle(items)
        return dict(items)
    if isinstance(data, list):
        return [shuffled(item, rng) for item in data]
    return data


@given(JSON, st.integers())
def test_the_order_of_keys_does_not_matter(data, seed):
    assert canonical(shuffled(data, random.Random(seed))) == canonical(data)


@given(JSON, JSON)
def test_different_data_have_different_digests(left, right):
    assert (digest(left) == digest(right)) == (canonical(left) == canonical(right))


@given(st.integers())
def test_the_order_of_keys_in_a_resource_does_not_matter(seed):
    from specdecode_operator import owned
    from specdecode_operator.objects import resource

    manifest = {
        "apiVersion": "specdecode.io/v1alpha1",
        "kind": "SpecDecodeDeployment",
        "metadata": {"name": "chat"},
        "spec": BASE,
    }
    mixed = shuffled(manifest, random.Random(seed))
    built = [owned.build(resource.parse(each), "engine:1") for each in (manifest, mixed)]
    assert built[0].config_hash == built[1].config_hash
    assert built[0].children == built[1].children


class NextBoot(EngineBoot):
    """The boot file of a later release, which has one field more."""

    news: int = 1


def test_an_operator_that_knows_more_replaces_no_pod(example, config_hash, monkeypatch):
    before = config_hash(example())
    monkeypatch.setattr(boot_file, "EngineBoot", NextBoot)
    assert config_hash(example()) == before
