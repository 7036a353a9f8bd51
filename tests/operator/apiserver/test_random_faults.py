"""400 random guards, candidates and templates: a faulty one stops neither Service nor replicas.

Each is validated as the CRDs do and planned without a cluster; of those that the plan finds faulty,
some of each kind are applied to a real API server. `FAULTY=400` applies all of them.
"""

import asyncio
import itertools
import os
import random
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from specdecode_api import names
from specdecode_api.v1alpha1 import RolloutSpec, SpecDecodeDeployment, SpecDecodeTrial
from specdecode_operator.objects.kinds import DEPLOYMENT, RESOURCE, SERVICE, TRIAL, child_id
from specdecode_operator.objects.observed import Key, Observed
from specdecode_operator.plan.plan import Plan, plan
from specdecode_operator.settings import Settings
from specdecode_operator.trial.strategies.guard import contradiction
from tests.operator.owned.test_pod_shape import random_template
from tests.operator.trial.strategies.test_guards import random_guard

pytestmark = pytest.mark.apiserver

SETTINGS = Settings(engine_image="specdecode-engine:test")
APPLIED = int(os.environ.get("FAULTY", "9"))
CONCURRENT = 4
KINDS = {"guard", "candidate", "template"}
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    3,
    8,
    2.5,
    "x",
    "8Gi",
    [],
    [1],
    {},
    {"x": 1},
    [{"from": 1}],
)
PLACES = (
    ("pageSize",),
    ("speculation",),
    ("speculation", "topk"),
    ("speculation", "draft"),
    ("speculation", "numSteps"),
    ("speculation", "adaptive"),
    ("speculation", "adaptive", "batchSizes"),
    ("engine",),
    ("engine", "image"),
    ("engine", "config"),
    ("engine", "config", "scheduling"),
    ("engine", "kvCache", "size"),
    ("engine", "scheduler", "maxRunningRequests"),
)


@dataclass(frozen=True)
class Drawn:
    """What is written: fields of the deployment's spec, or a trial; and how the plan names it."""

    kind: str
    spec: dict[str, Any]
    trial: dict[str, Any] | None = None
    named: str = ""


def random_candidate(rng):
    patch: dict[str, Any] = {}
    for path in rng.sample(PLACES, rng.randint(1, 2)):
        inside = patch
        for name in path[:-1]:
            inside = inside.setdefault(name, {})
            if not isinstance(inside, dict):
                break
        else:
            inside[path[-1]] = rng.choice(VALUES)
    return patch


def drawn():
    """The 400: 160 guards, 120 candidates, 120 templates."""
    rng = random.Random(20261128)
    for number in range(400):
        if number < 160:
            own = {"rollout": {"guard": random_guard(rng)}}
            candidate = {"pageSize": 32}
            yield Drawn("guard", own, {"guard": random_guard(rng), "candidate": candidate})
        elif number < 280:
            yield Drawn("candidate", {}, {"candidate": random_candidate(rng)})
        else:
            yield Drawn("template", {"template": {"spec": random_template(rng)}})


def is_admitted(manifest, case):
    """Whether the rules of the CRDs permit it; the API server validates again what is applied."""
    try:
        SpecDecodeDeployment.from_resource({**manifest, "spec": manifest["spec"] | case.spec})
        if case.trial is not None:
            SpecDecodeTrial.from_resource(trial_of("chat", "chat", "default", case))
    except ValidationError:
        return False
    return True


def is_harmless(case):
    """Whether a guard goes with the deployment's, so that its trial begins."""
    if case.kind != "guard":
        return False
    rollout = RolloutSpec.from_resource(case.spec["rollout"])
    return not contradiction(rollout, case.trial["guard"])


def trial_of(name, deployment, namespace, case):
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND_TRIAL,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"deployment": deployment, **(case.trial or {})},
    }


class Accepted(dict[str, str]):
    """Answers of an API server that accepts every candidate in its dry run."""

    def get(self, key, default=None):
        return ""


class World:
    """A resource that serves, in memory."""

    def __init__(self, manifest):
        self.manifest = manifest
        written = plan(Observed(manifest, {}), SETTINGS).writes
        live = {child_id(each.manifest): each.manifest for each in written}
        del live[next(each for each in live if each.kind == SERVICE.kind)]
        self.observed = Observed(manifest, live, at=datetime.now(UTC))

    def plan(self, case: Drawn) -> Plan:
        """Scaled, its Service deleted, with a case that the API server has accepted."""
        spec = {**self.manifest["spec"], **case.spec, "replicas": 5}
        resource = {**self.manifest, "spec": spec, "status": {"configHash": "v1-x"}}
        found = replace(self.observed, resource=resource)
        if case.trial is not None:
            live = trial_of("mine", "chat", "default", case)
            live["metadata"] |= {"uid": "uid-t", "generation": 1}
            found = replace(found, trials=(live,), dry_runs=Accepted())
        return plan(found, SETTINGS)


def error_of(decided: Plan) -> str:
    """How the plan names a case; empty where it finds none."""
    if decided.refused is not None:
        return "refused"
    ended = decided.step.record.history if decided.step else ()
    return next((each.reason for each in ended if each.reason == "InvalidCandidate"), "")


@pytest.fixture
def faulty(example):
    """The faulty ones that are admitted and that the plan names, by kind."""
    manifest = example(replicas=2)
    world, found = World(manifest), defaultdict(list)
    for case in drawn():
        if not is_admitted(manifest, case) or is_harmless(case):
            continue
        decided = world.plan(case)
        assert decided.failures == (), case
        by_kind = {each.manifest["kind"]: each.manifest for each in decided.writes}
        assert SERVICE.kind in by_kind, case
        assert by_kind[DEPLOYMENT.kind]["spec"]["replicas"] == 5, case
        if named := error_of(decided):
            found[case.kind].append(replace(case, named=named))
    return found


def chosen(faulty):
    """As many of each kind, in the order in which they were drawn."""
    rows = itertools.zip_longest(*faulty.values())
    return [each for row in rows for each in row if each is not None][:APPLIED]


async def test_service_and_replicas_follow_while_a_fault_exists(
    faulty, chat, parts, api, namespace
):
    gate = asyncio.Semaphore(CONCURRENT)

    async def settle(wired, name):
        for _ in range(10):
            wired.cache.put(api.get(RESOURCE, namespace, name))
            if await wired.reconcile(Key(namespace, name)) != 0.0:
                return

    async def try_out(wired, number, case):
        name = f"chat-{number}"
        async with gate:
            await settle(wired, name)
            if case.trial is not None:
                wired.cache.put(api.create(TRIAL, trial_of(name, name, namespace, case)))
            live = api.get(SERVICE, namespace, name)
            api.delete(SERVICE, namespace, name)
            wired.cache.remove(live)
            api.merge(RESOURCE, namespace, name, {"spec": {"replicas": 5, **case.spec}})
            await settle(wired, name)
        assert api.get(SERVICE, namespace, name) is not None, case
        assert api.get(DEPLOYMENT, namespace, name)["spec"]["replicas"] == 5, case
        status = api.get(RESOURCE, namespace, name)["status"]
        assert all(each["type"] != "PartFailed" for each in status["conditions"]), case
        if case.trial is None:
            resolved = next(c for c in status["conditions"] if c["type"] == "ConfigResolved")
            assert (resolved["status"], resolved["reason"]) == ("False", "Invalid"), case
        else:
            assert api.get(TRIAL, namespace, name)["status"]["reason"] == case.named, case

    assert {kind for kind, each in faulty.items() if len(each) > 8} == KINDS
    wanted = chosen(faulty)
    async with parts() as wired:
        for number, case in enumerate(wanted):
            own = {} if case.kind == "template" else case.spec
            chat(f"chat-{number}", replicas=2, **own)
        await wired.resync.once()
        await asyncio.gather(*(try_out(wired, *each) for each in enumerate(wanted)))
