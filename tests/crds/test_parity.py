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
    {"candidateSteps": st.lists(STEPS, max_size=4) | st.lists(st.integers(0, 4), max_size=3)},
    optional={
        "emaAlpha": st.sampled_from([0, 0.1, 1, 1.5]),
        "upHysteresis": st.sampled_from([-16, 0.5, 16, 17]),
        "updateInterval": near(1, 100_000),
    },
)
KEYS = st.sampled_from([*["1", "8", "64", "999999"] * 9, "0", "01", "1000000", "", "a", "1 "])
TABLES = st.dictionaries(KEYS, ENTRIES | st.none(), max_size=3)
SPECULATIONS = some(
    algorithm=st.sampled_from(
        ["NONE", "EAGLE", "EAGLE3", "NGRAM", "NGRAM", "NGRAM", "MTP", "ngram", None]
    ),
    draft=st.none() | st.fixed_dictionaries({}, optional={"uri": URIS}),
    topk=st.sampled_from([1, 1, 1, 2, 4, 16]) | near(1, 16),
    numSteps=STEPS,
    numDraftTokens=st.sampled_from([2, 3, 4, 5, 7, 8, 21, 22]) | near(2, 256),
    adaptive=some(policy=st.sampled_from(["static", "ema", "goodput", "off"]), batchSizes=TABLES),
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
TOLERATIONS = some(
    key=KEYS_OF_LABELS,
    operator=st.sampled_from(["Exists", "Equal", "Exists", "In"]),
    value=st.sampled_from(["", "v", "-"]),
    effect=st.sampled_from(["NoExecute", "NoSchedule", None]),
    tolerationSeconds=near(0, 2**31 - 1),
)
SPREADS = st.fixed_dictionaries(
    {
        "maxSkew": st.just(1) | near(1, 1000),
        "topologyKey": st.sampled_from(["a", "b"]),
        "whenUnsatisfiable": st.sampled_from(["DoNotSchedule", "ScheduleAnyway"]),
    },
    optional={"minDomains": st.sampled_from([1, 2, None])},
)
VARIABLES = st.fixed_dictionaries(
    {"name": st.sampled_from([*["A", "B", "_c1"] * 4, "HOME", "1a", "a-b", ""])},
    optional={
        "value": st.sampled_from(["", "x", None]),
        "valueFrom": some(
            secretKeyRef=st.none() | st.just({"name": "a", "key": "b"}),
            fieldRef=st.none() | st.just({"fieldPath": "status.podIP"}),
        ),
    },
)
FREE: st.SearchStrategy[object] = st.sampled_from(
    [{}, {"a": [1, None, {"b": 1.5}]}, {"hostNetwork": True}, [], "x", None]
)
PODS = some(
    nodeSelector=LABELS,
    tolerations=st.lists(TOLERATIONS, max_size=2),
    affinity=some(nodeAffinity=FREE),
    topologySpreadConstraints=st.lists(SPREADS, max_size=3),
    runtimeClassName=st.sampled_from(["nvidia", "Nvidia", None]),
    imagePullSecrets=st.lists(some(name=st.sampled_from(["a", "A"])), max_size=2),
    env=st.lists(VARIABLES, max_size=3),
    template=some(metadata=some(labels=LABELS, annotations=LABELS), spec=FREE),
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
        "serving": some(
            maxRunningRequests=near(1, 4096),
            kvCacheSize=st.sampled_from([1048575, 1048576, "1Mi", "1023Ki", "8Gi", "8", "x", None]),
        ),
        "lifecycle": some(
            preStopSeconds=near(0, 600),
            drainSeconds=st.sampled_from([0, 60, 75, 76]),
            terminationGracePeriodSeconds=st.sampled_from([9, 10, 75, 90, 611, 90_000]),
        ),
        "replicas": near(0, 1000),
        "resources": some(limits=RESOURCES, requests=RESOURCES),
        "download": DOWNLOADS,
        "image": st.sampled_from(["a", "ab", "r/x:1", "r/x@sha256:0", "x:", "a b", None]),
    },
)
# Most random resources are bad in many ways. One part at a time gets close to the border.
ONE_PART = st.one_of(
    *(
        st.fixed_dictionaries({"model": st.just({"uri": "pvc://models/x"}), name: strategy})
        for name, strategy in {
            "speculation": SPECULATIONS,
            "serving": some(kvCacheSize=QUANTITIES),
            "lifecycle": some(
                drainSeconds=st.integers(70, 80), terminationGracePeriodSeconds=st.integers(85, 95)
            ),
            "resources": some(limits=RESOURCES, requests=RESOURCES),
            "download": DOWNLOADS,
            "pod": PODS,
        }.items()
    ),
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
