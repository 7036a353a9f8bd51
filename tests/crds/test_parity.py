"""Random resources near the border: the API server and pydantic take and refuse the same ones."""

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from specdecode_api import names
from specdecode_api.v1alpha1 import SpecDecodeDeployment

pytestmark = pytest.mark.apiserver

EXAMPLES = 300


def near(low: int, high: int) -> st.SearchStrategy[Any]:
    """A number just inside or outside the bounds, mostly inside, seldom no number at all."""
    inside = st.sampled_from([low, low + 1, high - 1, high])
    outside = st.sampled_from([low - 1, high + 1, None, "1", True])
    return st.one_of(*[inside] * 5, outside)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


URIS = st.sampled_from(
    [
        *["pvc://models/x", "pvc://a.b/c/d", "file:///srv/x", "pvc://models"] * 9,
        *["hf://org/name", "hf://o/n.v1@main", "oci://host:5000/a/b_c:v1", "oci://h/a"] * 4,
        *("hf://org", "hf://a/b/c", "hf://a/b@", "hf://-a/b", "hf://a/b@x/../y", "hf://a/b@v1\n"),
        *("oci://a", "oci://a/B", "oci://a/b:", "oci://a/b@sha256:0", "oci://a/b-"),
        *("pvc://A/b", "pvc://a..b/c", "pvc://-a/b", "pvc://a/../b", "pvc://a/b/.", "pvc://a//b"),
        *("file://srv", "file:///a/..", "file:///..a/b", "s3://x/yz", "pvc://a/é", ""),
    ]
)
STEPS = near(0, 16) | st.integers(0, 5)
ENTRIES = st.fixed_dictionaries(
    {
        "from": st.sampled_from([1, 8, 64, 999_999]) | near(1, 999_999),
        "candidateSteps": st.lists(STEPS, max_size=4) | st.lists(st.integers(0, 4), max_size=3),
    },
    optional={
        "emaAlpha": st.sampled_from([0, 0.1, 1, 1.5]),
        "upHysteresis": st.sampled_from([-16, 0.5, 16, 17]),
        "updateInterval": near(1, 100_000),
    },
)
TABLES = st.lists(ENTRIES, max_size=3) | st.just({"1": {"candidateSteps": [1]}})
SPECULATIONS = some(
    algorithm=st.sampled_from(
        ["NONE", "EAGLE", "EAGLE3", "STANDALONE", "MTP", "EAGLE", "NGRAM", "eagle", None]
    ),
    draft=st.just({"uri": "pvc://m/d"}) | st.fixed_dictionaries({}, optional={"uri": URIS}),
    fallback=st.sampled_from(["NGRAM", "NGRAM", "EAGLE"]),
    ngram=some(
        source=st.sampled_from(["Suffix", "Prompt", "Trie", "suffix"]),
        scope=st.sampled_from(["Request", "Model"]),
        maxDepth=near(1, 128) | st.sampled_from([18, 19, 64]),
        minMatch=near(1, 128) | st.sampled_from([18, 19, 64]),
        minBreadth=near(1, 64),
        maxBreadth=near(1, 64),
        match=st.sampled_from(["BFS", "PROB", "Bfs"]),
        capacity=near(1, 100_000_000),
        minTokenProbability=st.sampled_from([0, 0.1, 1, 1.5]),
        maxSpecFactor=st.sampled_from([0.1, 1, 16, 17]),
    ),
    topk=st.sampled_from([1, 1, 1, 2, 4, 16]) | near(1, 16),
    numSteps=STEPS,
    numDraftTokens=st.sampled_from([2, 3, 4, 5, 7, 8, 21, 22]) | near(2, 256),
    adaptive=some(policy=st.sampled_from(["Static", "Ema", "Goodput", "ema"]), batchSizes=TABLES),
)
QUANTITIES = st.sampled_from(
    [
        *[1, 2, "1", "500m", "2Gi", "2147483648", "1.5", 0] * 3,
        -1,
        "1e3",
        "",
        ".5",
        " 1",
        1.5,
        True,
        None,
    ]
)
RESOURCE_NAMES = st.sampled_from(
    [*["cpu", "memory", "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"] * 5, "a b", "", "/x", "x/"]
)
RESOURCES = st.dictionaries(RESOURCE_NAMES, QUANTITIES, max_size=3)
DOWNLOADS = some(
    cacheClaim=st.sampled_from(["models", "a.b", "A", "", None]),
    cacheSizeLimit=st.sampled_from(["8Gi", "1023Ki", None, None]),
    tokenSecret=st.none()
    | some(name=st.sampled_from(["hub", "hub", "Hub"]), key=st.sampled_from(["t", "a.b_-", "a/b"])),
    endpoint=st.sampled_from(["https://a", "http://a.b:1/c", "https://", "ftp://a", "http://a/"]),
)
KEYS_OF_LABELS = st.sampled_from(
    [*["a", "a.b/c-d_e"] * 5, "", "a/", "a b", "specdecode.io/x", "A/b"]
)
LABELS = st.dictionaries(KEYS_OF_LABELS, st.sampled_from(["", "v", "-", "a" * 64, None, 1]))
FREE: st.SearchStrategy[object] = st.sampled_from(
    [{}, {"a": [1, None, {"b": 1.5}]}, {"hostNetwork": True}, [], "x", None]
)
TEMPLATES = some(metadata=some(labels=LABELS, annotations=LABELS), spec=FREE)
ROUTERS = some(
    replicas=near(1, 100),
    retries=near(0, 10),
    timeout=st.sampled_from(["0s", "90s", "1h", "61m", "10", "", None]),
    maxConnections=near(1, 100_000),
    resources=some(limits=RESOURCES) | some(requests=RESOURCES),
    template=TEMPLATES,
)
DURATIONS = st.sampled_from(
    [
        *["0s", "5s", "60s", "75s", "1m15s", "76s", "90s", "10m", "1h30m"] * 3,
        *["24h", "25h", "601s", "10", "", "1d", "-1s", "1.5s", " 1s", "1s\n", 5, None],
    ]
)
LIFECYCLES = some(
    preStop=DURATIONS,
    drainTimeout=DURATIONS,
    terminationGracePeriod=DURATIONS,
    startupTimeout=DURATIONS,
    stepTimeout=DURATIONS,
)
COUNTS = st.sampled_from(
    [*[0, 1, "0%", "25%", "100%"] * 4, 1000, 1001, -1, "101%", "1", "", "05%", True, 1.5, None]
)
UPDATE_STRATEGIES = some(
    type=st.sampled_from(["Auto", "Surge", "InPlace", "InPlace", "Recreate", None]),
    maxSurge=COUNTS,
    maxUnavailable=COUNTS,
    surgeTimeout=DURATIONS,
)
KV_SIZES = st.sampled_from([1048575, 1048576, "1Mi", "1023Ki", "8Gi", "8", "x", None])
ENGINES = some(
    image=st.sampled_from(["a", "ab", "r/x:1", "r/x@sha256:0", "x:", "a b", None]),
    upgradePolicy=st.sampled_from(["Pinned", "Roll", "Always", None]),
    device=st.sampled_from(["CPU", "GPU", "cpu"]),
    kvCache=some(
        size=st.none() | KV_SIZES,
        memoryFraction=st.sampled_from(
            ["0.9", "1", "1.0", "0.90", "0", "0.0", "1.1", ".5", "90%", 1, None, None]
        ),
        dtype=st.sampled_from(["auto", "fp8_e4m3", "float8"]),
        prefixCaching=st.sampled_from([True, False, "true", 1]),
    ),
    scheduler=some(maxRunningRequests=near(1, 4096), chunkedPrefillTokens=near(16, 65_536)),
    graphs=some(
        mode=st.sampled_from(["Auto", "Cuda", "Eager", "off"]),
        batchSizes=st.lists(near(1, 4096), max_size=2) | st.none(),
        captureTimeout=DURATIONS,
    ),
    overlap=st.sampled_from([True, None, "yes"]),
)
PARALLELISMS = some(tensor=st.sampled_from([1, 2, 2, 2]) | near(1, 16))
GPUS = st.dictionaries(
    st.sampled_from([*["nvidia.com/gpu"] * 4, "nvidia.com/mig-1g.10gb", "cpu"]),
    st.sampled_from([*[1, 2, "2"] * 4, "2000m", 3, 0, 17, None]),
    max_size=2,
)
RANKS = st.fixed_dictionaries(
    {"model": st.just({"uri": "pvc://models/x"})},
    optional={
        "parallelism": PARALLELISMS | st.none(),
        "engine": some(device=st.sampled_from(["CPU", "GPU", "GPU"])),
        "resources": some(limits=GPUS) | some(requests=GPUS) | some(limits=GPUS, requests=GPUS),
        "speculation": st.just({"algorithm": "FROZEN_KV_MTP", "draft": {"uri": "pvc://m/d"}})
        | st.just({"algorithm": "NGRAM"}),
    },
)
ROLLOUTS = some(
    editPolicy=st.sampled_from(["Immediate", "Guarded", "guarded"]),
    guard=some(minDuration=DURATIONS, maxDuration=DURATIONS),
    switchback=some(block=DURATIONS, washout=DURATIONS),
    exploration=some(
        maxCandidateShare=st.sampled_from(["5%", "0.5%", "100%", "0.05"]),
        maxTrialsPerDay=near(0, 1000),
    ),
)
SPECS = st.fixed_dictionaries(
    {
        "model": st.fixed_dictionaries(
            {"uri": URIS},
            optional={
                "servedName": st.sampled_from(["a", "a/b-1", "-a", "a b", ""]),
                "contextLength": near(16, 10_000_000),
            },
        )
    },
    optional={
        "pageSize": st.sampled_from([1, 16, 256, 16, 0, 3, 512, "16", None]),
        "speculation": SPECULATIONS,
        "engine": ENGINES,
        "lifecycle": LIFECYCLES,
        "updateStrategy": UPDATE_STRATEGIES,
        "replicas": near(0, 1000),
        "parallelism": PARALLELISMS,
        "resources": some(limits=RESOURCES, requests=RESOURCES),
        "download": DOWNLOADS,
    },
)
# Most random resources are bad in many ways. One part at a time gets close to the border.
ONE_PART = st.one_of(
    *(
        st.fixed_dictionaries({"model": st.just({"uri": "pvc://models/x"}), name: strategy})
        for name, strategy in {
            "speculation": SPECULATIONS,
            "engine": ENGINES,
            "lifecycle": LIFECYCLES,
            "updateStrategy": UPDATE_STRATEGIES,
            "rollout": ROLLOUTS,
            "resources": some(limits=RESOURCES, requests=RESOURCES),
            "router": ROUTERS,
            "download": DOWNLOADS,
            "template": TEMPLATES,
        }.items()
    ),
    RANKS,
    SPECULATIONS.map(lambda it: {"model": {"uri": "pvc://m/x"}, "speculation": it}),
)
NAMES = st.sampled_from([*["chat", "a" * 40] * 6, "a" * 41, "1a", "a.b"])


def read_or_refuse(resource: dict[str, Any]) -> tuple[SpecDecodeDeployment | None, str]:
    try:
        return SpecDecodeDeployment.from_resource(resource), ""
    except ValidationError as refusal:
        return None, str(refusal)


def test_both_agree(server):
    verdicts: Counter[bool] = Counter()

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(NAMES, SPECS | ONE_PART | ONE_PART)
    def agree(name, spec):
        resource = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name},
            "spec": spec,
        }
        answer = server.try_out(resource)
        is_admitted = answer.status_code == 201
        assert is_admitted or answer.status_code in (400, 422), answer.text
        read, refusal = read_or_refuse(resource)
        assert is_admitted == (read is not None), refusal or answer.json()["message"]
        if read is not None:
            assert SpecDecodeDeployment.from_resource(answer.json()).spec == read.spec
        verdicts[is_admitted] += 1

    agree()
    assert min(verdicts[True], verdicts[False]) >= math.floor(EXAMPLES / 4), verdicts
