"""The InferencePool of a resource: the object, when it is written or removed, and its condition."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import jsonschema
import pytest
import yaml

from specdecode_api import names
from specdecode_operator import owned
from specdecode_operator.objects.kinds import INFERENCE_POOL, SERVICE, child_id
from specdecode_operator.objects.observed import Observed
from specdecode_operator.objects.resource import parse
from specdecode_operator.plan.plan import NO_INFERENCE_POOLS, RefusalReason, plan
from specdecode_operator.plan.writes import Cause
from specdecode_operator.settings import Settings
from specdecode_operator.status.inference_pool_view import pool_check
from specdecode_operator.status.outcome import Outcome, pool_blocked_by
from specdecode_operator.status.status import status

SETTINGS = Settings(engine_image="specdecode-engine:test")
NOW = datetime(2026, 11, 27, 12, 0, tzinfo=UTC)
POOL = {"endpointPickerRef": {"name": "chat-epp"}}
COUNTS = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")


@pytest.fixture
def observe(live):
    """A resource whose engines serve, with its InferencePool as it should be, and changes to it."""

    def make(manifest, *, change=None, reports=None):
        resource = parse(manifest)
        objects = [*owned.build(resource, SETTINGS.engine_image).children]
        objects += owned.inference_pools(parse(manifest | {"spec": spec_with_pool(manifest)}))
        made = {child_id(each): live(each) for each in objects}
        for each in made.values():
            if each["kind"] == "Deployment":
                each["status"] = {"observedGeneration": 1, **dict.fromkeys(COUNTS, 1)}
            if each["kind"] == INFERENCE_POOL.kind:
                each["spec"]["endpointPickerRef"]["group"] = ""  # a default of the CRD
                if change is not None:
                    change(each)
                if reports is not None:
                    each["status"] = {"parents": reports}
        return Observed(manifest, made)

    return make


def spec_with_pool(manifest):
    return {**manifest["spec"], "inferencePool": manifest["spec"].get("inferencePool", POOL)}


def gateway(name, kind="Accepted", status="True", reason="Accepted", message=""):
    condition = {"type": kind, "status": status, "reason": reason, "message": message}
    return {"parentRef": {"name": name}, "conditions": [condition]}


def conditions(shown):
    return {each["type"]: (each["status"], each["reason"]) for each in shown["conditions"]}


def shown(observed, outcome=Outcome()):  # noqa: B008
    return status(observed, plan(observed, SETTINGS), outcome, NOW)


def test_the_pool_selects_what_the_service_selects_at_the_engines_port(example):
    resource = parse(example(inferencePool=POOL))
    (pool,) = owned.inference_pools(resource)
    built = owned.build(resource, SETTINGS.engine_image).children
    (service,) = (each for each in built if each["kind"] == SERVICE.kind)
    assert pool["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    assert pool["spec"]["targetPorts"] == [{"number": names.ENGINE_PORT}]
    assert pool["spec"]["endpointPickerRef"] == {
        "kind": "Service",
        "name": "chat-epp",
        "port": {"number": 9002},
        "failureMode": "FailClose",
    }
    assert pool["metadata"]["ownerReferences"] == service["metadata"]["ownerReferences"]
    assert pool["metadata"]["labels"][names.LABEL_MANAGED_BY] == names.FIELD_MANAGER


def test_the_pool_is_valid_for_the_schema_of_its_crd(example):
    file = Path(__file__).parents[1] / "apiserver" / "fixtures" / "inferencepools.yaml"
    crd = yaml.safe_load(file.read_text())["spec"]
    (version,) = crd["versions"]
    assert crd["names"]["kind"] == INFERENCE_POOL.kind
    assert crd["names"]["plural"] == INFERENCE_POOL.plural
    assert (crd["group"], version["name"]) == (INFERENCE_POOL.group, INFERENCE_POOL.version)
    (pool,) = owned.inference_pools(parse(example(inferencePool=POOL)))
    schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    jsonschema.validate(pool["spec"], schema)
    assert_known(pool["spec"], schema)


def assert_known(value, schema):
    """The API server drops fields that a schema does not know."""
    if isinstance(value, list):
        for each in value:
            assert_known(each, schema["items"])
    elif isinstance(value, dict) and "properties" in schema:
        assert value.keys() <= schema["properties"].keys()
        for name, each in value.items():
            assert_known(each, schema["properties"][name])


def test_port_and_failure_mode_of_the_picker_reach_the_pool(example):
    picker = {"name": "picker", "port": {"number": 9100}, "failureMode": "FailOpen"}
    resource = parse(example(inferencePool={"endpointPickerRef": picker}))
    (pool,) = owned.inference_pools(resource)
    assert pool["spec"]["endpointPickerRef"] == {"kind": "Service", **picker}


def test_a_pool_changes_nothing_of_the_engines(example):
    objects = [
        owned.build(parse(example(**spec)), SETTINGS.engine_image).children
        for spec in ({}, {"inferencePool": POOL})
    ]
    assert objects[0] == objects[1]


def test_a_new_pool_is_written_apart_from_the_engines_objects(example):
    decided = plan(Observed(example(inferencePool=POOL), {}), SETTINGS)
    (write,) = decided.pool.writes
    assert (write.manifest["kind"], write.cause) == ("InferencePool", Cause.MISSING)
    assert all(each.manifest["kind"] != INFERENCE_POOL.kind for each in decided.writes)


def test_nothing_is_written_or_removed_when_the_pool_is_as_desired(example, observe):
    decided = plan(observe(example(inferencePool=POOL)), SETTINGS)
    assert (decided.pool.writes, decided.pool.prunes, decided.prunes) == ((), (), ())


def test_a_pool_that_is_no_longer_wanted_is_removed(example, observe):
    decided = plan(observe(example()), SETTINGS)
    assert decided.pool.writes == ()
    assert [each["kind"] for each in decided.pool.prunes] == ["InferencePool"]
    assert "InferencePoolReady" not in conditions(shown(observe(example())))


def test_an_edited_pool_is_drift(example, observe):
    def edit(pool):
        pool["spec"]["targetPorts"] = [{"number": 1}]

    manifest = example(inferencePool=POOL)
    manifest["status"] = {"observedGeneration": 1}
    decided = plan(observe(manifest, change=edit), SETTINGS)
    (write,) = decided.pool.writes
    assert (write.cause, write.is_present, decided.pool.prunes) == (Cause.DRIFTED, True, ())


def test_a_pool_whose_selector_others_extended_is_replaced(example, observe):
    """A server-side apply would leave the label of another manager there."""

    def edit(pool):
        pool["spec"]["selector"]["matchLabels"]["team"] = "a"

    decided = plan(observe(example(inferencePool=POOL), change=edit), SETTINGS)
    (write,) = decided.pool.writes
    assert (write.cause, write.is_present) == (Cause.DRIFTED, False)
    assert [each["metadata"]["name"] for each in decided.pool.prunes] == ["chat"]


def test_an_operator_that_permits_no_pools_refuses_the_field(example):
    settings = replace(SETTINGS, has_inference_pools=False)
    refused = plan(Observed(example(inferencePool=POOL), {}), settings).refused
    assert refused is not None
    assert (refused.reason, refused.sentences) == (RefusalReason.INVALID, (NO_INFERENCE_POOLS,))
    assert plan(Observed(example(), {}), settings).refused is None


@pytest.mark.parametrize(
    ("code", "reason", "remedy"),
    [
        (404, "CRDNotInstalled", "install the CRDs of the Gateway API Inference Extension"),
        (403, "Forbidden", "inferencePool.enabled: true"),
        (422, "ApplyFailed", "refused"),
        (503, "ApplyFailed", "refused"),
    ],
)
def test_a_pool_that_is_not_written_degrades_the_resource_and_engines_stay_ready(
    code, reason, remedy, example, observe
):
    observed = observe(example(inferencePool=POOL))
    found = shown(observed, Outcome(pool=pool_blocked_by(code, "refused")))
    by_type = conditions(found)
    assert by_type["InferencePoolReady"] == ("False", reason)
    assert by_type["Degraded"] == ("True", reason)
    assert (by_type["Ready"][0], by_type["Stalled"][0]) == ("True", "False")
    (message,) = (each["message"] for each in found["conditions"] if each["type"] == "Degraded")
    assert remedy in message


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        (None, (True, "NoGateway", "backendRefs of an HTTPRoute")),
        ([], (True, "NoGateway", "backendRefs of an HTTPRoute")),
        ([gateway("b"), gateway("a")], (True, "Accepted", "used by Gateway default/a, default/b")),
        (
            [gateway("a"), gateway("b", "ResolvedRefs", "False", "InvalidExtensionRef", "no epp")],
            (
                False,
                "ReferencesNotResolved",
                "Gateway default/b: InvalidExtensionRef: no epp",
            ),
        ),
        (
            [gateway("a", status="False", reason="NotSupportedByParent", message="no")],
            (False, "NotAccepted", "Gateway default/a: NotSupportedByParent: no"),
        ),
        ([{"parentRef": {"name": "a"}}], (True, "NoGateway", "backendRefs of an HTTPRoute")),
    ],
)
def test_the_condition_reports_what_gateways_report(reports, expected, example, observe):
    observed = observe(example(inferencePool=POOL), reports=reports)
    found = pool_check(observed, plan(observed, SETTINGS), Outcome())
    assert found is not None
    assert (found.status, found.reason) == expected[:2]
    assert expected[2] in found.message


def test_a_pool_waits_for_engines_whose_objects_are_blocked(example):
    observed = Observed(example(inferencePool=POOL), MappingProxyType({}))
    found = pool_check(observed, plan(observed, SETTINGS), Outcome())
    assert found is not None
    assert (found.status, found.reason) == (False, "WaitingForEngines")
