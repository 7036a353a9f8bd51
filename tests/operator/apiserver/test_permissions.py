"""Each permission that the chart grants is needed, and a missing one is reported by name.

This is tested twice: by the operator's preflight check, and in operation, where the API server
denies the request that needs the permission. Both tests use a Role; the ClusterRole has its rules
from the same template, and the preflight check covers it too.
"""

import asyncio
import contextlib
import copy
import itertools
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from specdecode_api import names
from specdecode_operator.cluster.cache import Cache
from specdecode_operator.cluster.cluster import connect
from specdecode_operator.cluster.kube_api import KubeApiError
from specdecode_operator.cluster.metrics import Metrics
from specdecode_operator.cluster.watching import EventHandler, Vitals, open_watches, register
from specdecode_operator.engines.engine_client import open_engine_client
from specdecode_operator.engines.engine_poller import EnginePoller
from specdecode_operator.objects import kinds
from specdecode_operator.objects.kinds import DEPLOYMENT, RESOURCE, SERVICE
from specdecode_operator.objects.observed import Key
from specdecode_operator.process.errors import StartError
from specdecode_operator.process.preflight import lease_permissions, permissions
from specdecode_operator.process.resync import Resync
from specdecode_operator.process.run import run
from specdecode_operator.reconcile import Reconciler
from specdecode_operator.settings import Settings

pytestmark = pytest.mark.apiserver

OPERATOR = "specdecode-operator"
SYSTEM = "specdecode-system"
ROLES = {"Role": "RoleBinding", "ClusterRole": "ClusterRoleBinding"}
ALL = permissions(kinds.ALL, ())
LEASE = lease_permissions(SYSTEM, OPERATOR)
every_right = pytest.mark.parametrize("right", ALL, ids=lambda each: f"{each.verb}-{each.what}")
_numbers = itertools.count(1)


def _without(rules, right):
    """The rules less one verb on one resource."""
    kept, taken = [], 0
    for rule in rules:
        names = {"resourceNames": rule["resourceNames"]} if "resourceNames" in rule else {}
        for group, resource in itertools.product(rule["apiGroups"], rule["resources"]):
            verbs = list(rule["verbs"])
            what = f"{resource.split('/')[0]}.{group}" if group else resource
            what += f"/{resource.split('/')[1]}" if group and "/" in resource else ""
            if what == right.what and right.verb in verbs:
                verbs.remove(right.verb)
                taken += 1
            if verbs:  # a rule without any is refused
                one = {"apiGroups": [group], "resources": [resource], "verbs": verbs}
                kept.append(one | names)
    return kept, taken


@pytest.fixture(scope="module")
def rendered(template):
    """What the chart renders in each mode, by the kind of its role."""
    flags = "crds.install=false,rbac.aggregate=false"
    return {
        "Role": template("--set", f"watchNamespaces={{team}},{flags}"),
        "ClusterRole": template("--set", flags),
    }


@pytest.fixture
def grant_less(grant, rendered, namespace, kubeconfig):
    """Grant an account all that the chart grants but one right; returns its kubeconfig."""

    def granted(right, kind="Role"):
        suffix, chosen, taken = f"-less-{next(_numbers)}", [], 0
        for manifest in copy.deepcopy(rendered[kind]):
            name = manifest["metadata"]["name"]
            if name not in (OPERATOR, f"{OPERATOR}-lease"):
                continue
            manifest["metadata"]["name"] = name + suffix
            if manifest["metadata"].get("namespace") == "team":
                manifest["metadata"]["namespace"] = namespace
            if manifest["kind"] in ROLES:
                manifest["rules"], one = _without(manifest["rules"], right)
                taken += one
            if manifest["kind"] in ROLES.values():
                manifest["roleRef"]["name"] = name + suffix
                manifest["subjects"][0]["name"] = OPERATOR + suffix
            if manifest["kind"] == "Deployment":
                manifest["spec"]["template"]["spec"]["serviceAccountName"] = OPERATOR + suffix
            chosen.append(manifest)
        assert taken == 1, f"the chart grants {right.verb} on {right.what} {taken} times"
        return grant(chosen)

    return granted


@every_right
@pytest.mark.parametrize("kind", ROLES)
async def test_a_right_that_is_missing_ends_the_start_by_name(right, kind, grant_less, namespace):
    served = (namespace,) if kind == "Role" else ()
    settings = _settings(grant_less(right, kind), namespaces=served)
    with pytest.raises(StartError) as caught:
        await run(settings)
    where = f"namespace {namespace}" if served else "all namespaces"
    assert str(caught.value) == (
        f"this account may not {right.verb} {right.what} in {where}; grant the operator's service "
        "account this verb, as the chart does"
    )


@pytest.mark.parametrize("right", LEASE, ids=lambda each: each.verb)
async def test_a_right_on_the_lease_that_is_missing_ends_the_start(right, grant_less, namespace):
    settings = _settings(grant_less(right), namespaces=(namespace,))
    with pytest.raises(StartError) as caught:
        await run(settings)
    refusal = (
        f"this account may not {right.verb} leases.coordination.k8s.io in namespace {SYSTEM}; "
    )
    assert str(caught.value).startswith(refusal)


def _settings(kubeconfig, **more):
    return Settings(
        engine_image="-",
        kubeconfig=str(kubeconfig),
        metrics_port=0,
        start_timeout_seconds=0,
        lease_namespace=SYSTEM,
        lease_name=OPERATOR,
        **more,
    )


@pytest.fixture
def life(chat, api, namespace):
    """All that can happen to a resource, step by step, as people and controllers do it."""

    def complete():
        generation = api.get(DEPLOYMENT, namespace, "chat")["metadata"]["generation"]
        counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
        status = {"observedGeneration": generation, **dict.fromkeys(counts, 2)}
        api.merge(DEPLOYMENT, namespace, "chat", {"status": status}, "/status")

    def leave_canary():
        """What an operator that ended in mid-trial may leave."""
        left = api.get(DEPLOYMENT, namespace, "chat")
        metadata = {key: left["metadata"][key] for key in ("labels", "ownerReferences")}
        metadata |= {"name": "chat-canary", "namespace": namespace}
        api.create(DEPLOYMENT, {**left, "metadata": metadata, "status": {}})

    def wait_for_room():
        """A new pod that has waited long for a node, which an old pod has."""
        template = api.get(DEPLOYMENT, namespace, "chat")["spec"]["template"]
        for name, config_hash in (("old", "v1-old"), ("new", "v1-new")):
            metadata = copy.deepcopy(template["metadata"]) | {"name": name, "namespace": namespace}
            metadata["annotations"][names.ANNOTATION_CONFIG_HASH] = config_hash
            api.create(kinds.POD, {"metadata": metadata, "spec": template["spec"]})
        scheduled = {"type": "PodScheduled", "status": "True"}
        refused = {
            "type": "PodScheduled",
            "status": "False",
            "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
            "lastTransitionTime": "2026-11-21T12:00:00Z",
        }
        for name, condition in (("old", scheduled), ("new", refused)):
            status = {"status": {"conditions": [condition]}}
            api.merge(kinds.POD, namespace, name, status, "/status")

    vllm = {"engine": {"runtime": "VLLM"}, "rollout": {"mode": "Manual"}}
    return (
        lambda: chat(replicas=2, router={}, engine={}, speculation={}),
        lambda: api.merge(RESOURCE, namespace, "chat", {"spec": vllm}),
        lambda: api.merge(
            RESOURCE, namespace, "chat", {"spec": {"engine": {"runtime": "Specdecode"}}}
        ),
        wait_for_room,
        leave_canary,
        lambda: api.delete(SERVICE, namespace, "chat"),
        lambda: api.merge(RESOURCE, namespace, "chat", {"spec": {"pageSize": 64, "router": None}}),
        complete,
        lambda: api.merge(RESOURCE, namespace, "chat", {"spec": {"replicas": 1}}),
    )


async def _live(file, namespace, life, api):
    """Reconcile after every step, as `run` would; returns what stopped it, if anything did."""
    metrics = Metrics("test")
    settings = Settings(engine_image="specdecode-engine:test", namespaces=(namespace,))
    cache = Cache()
    async with (
        connect(str(file), metrics, 30) as cluster,
        open_engine_client() as engines,
    ):
        resync = Resync(
            cluster, cache, settings.namespaces, lambda key: None, lambda key, _: None, metrics,
            lambda: 0.0,
        )  # fmt: skip
        reconciler = Reconciler(
            cluster,
            cache,
            settings,
            metrics,
            lambda: datetime.now(UTC),
            EnginePoller(engines, time.monotonic),
        )
        for step in life:
            step()
            try:
                await resync.once()
                await reconciler.reconcile(Key(namespace, "chat"))
            except KubeApiError as error:  # the worker logs it, and tries again
                return str(error)
            conditions = api.get(RESOURCE, namespace, "chat")["status"]["conditions"]
            for each in conditions:
                if each["reason"] in ("ApplyFailed", "TokenNotWritten"):
                    return each["message"]
    return None


# Resources can do without optional kinds: `test_inference_pools` has what a missing right does.
# Reconciles of this life create no trial; `test_trial_objects` has these requests, and
# `test_candidates` the dry run.
OF_TRIALS = {
    (kind, verb)
    for kind in (kinds.TRIAL, kinds.CONTROLLER_REVISION)
    for verb in ("create", "delete", "patch")
} | {(kinds.RESOURCE, "create")}


@pytest.mark.parametrize(
    "right",
    [
        each
        for each in ALL
        if each.verb != "watch"
        and (each.kind, each.verb) not in OF_TRIALS
        and each.kind not in kinds.OPTIONAL
    ],
    ids=lambda each: f"{each.verb}-{each.what}",
)
async def test_the_work_itself_needs_the_right(right, grant_less, namespace, life, api):
    refusal = await _live(grant_less(right), namespace, life, api)
    plural = right.what.split(".")[0] + (f"/{right.subresource}" if right.subresource else "")
    assert f'cannot {right.verb} resource "{plural}" in API group "{right.kind.group}"' in refusal


async def test_with_all_rights_the_same_life_goes_through(kubeconfig, namespace, life, api):
    assert await _live(kubeconfig, namespace, life, api) is None
    budget = kinds.DISRUPTION_BUDGET
    assert api.items(budget, namespace, kinds.OWNED_SELECTOR) == []
    (config_map,) = api.items(kinds.CONFIG_MAP, namespace, kinds.OWNED_SELECTOR)
    status = api.get(RESOURCE, namespace, "chat")["status"]
    assert config_map["metadata"]["name"] == f"chat-{status['configHash']}"
    assert {each["reason"] for each in api.items(kinds.EVENT, namespace)} >= {"Starting"}
    assert names.LABEL_MANAGED_BY in config_map["metadata"]["labels"]


@pytest.mark.parametrize("kind", kinds.WATCHED, ids=lambda kind: kind.plural)
async def test_watching_needs_the_right(kind, grant_less, namespace, caplog):
    (right,) = (each for each in ALL if (each.verb, each.kind) == ("watch", kind))
    settings = Settings("-", namespaces=(namespace,), kubeconfig=str(grant_less(right)))
    metrics, stop = Metrics("test"), asyncio.Event()
    before = _sockets()
    async with connect(settings.kubeconfig, metrics, 30) as cluster:
        handler = EventHandler(Cache(), lambda key: None, metrics)
        registry = register(handler, lambda: Vitals(0.0, 300.0, 0.0), cluster.api.renewed)
        async with open_watches(registry, settings, stop, lambda: None), asyncio.timeout(60):
            while f'cannot watch resource "{kind.plural}"' not in caplog.text:
                await asyncio.sleep(0.02)
    async with asyncio.timeout(30):
        while _sockets() > before:  # encrypted ones take leave of the server first
            await asyncio.sleep(0.02)


def _sockets() -> int:
    """Sockets that this process has open."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile, as what lists the folder is
            count += os.readlink(link).startswith("socket:")
    return count
