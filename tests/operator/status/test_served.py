"""What an older definition lacks, and what of a status it would keep."""

import copy
from typing import Any

import pytest

from specdecode_operator.cluster.served_crd import ServedCrd
from specdecode_operator.status.served import known_part, lacks, own_schema, sentence


@pytest.fixture
def served():
    return copy.deepcopy(own_schema())


def test_a_current_definition_lacks_nothing(served):
    assert list(lacks(own_schema(), served)) == []


def test_a_newer_definition_lacks_nothing(served):
    served["properties"]["spec"]["properties"]["later"] = {"type": "string"}
    assert list(lacks(own_schema(), served)) == []


def test_the_topmost_field_that_is_missing_is_named_and_not_what_is_in_it(served):
    del served["properties"]["status"]["properties"]["conditions"]["items"]["properties"]["reason"]
    del served["properties"]["spec"]["properties"]["speculation"]
    found = list(lacks(own_schema(), served))
    assert found == ["spec.speculation", "status.conditions[].reason"]


def test_a_value_that_would_be_refused_is_named(served):
    served["properties"]["spec"]["properties"]["engine"]["properties"]["device"]["enum"] = ["CPU"]
    (found,) = lacks(own_schema(), served)
    assert found.startswith("spec.engine.device=")


def test_what_keeps_unknown_fields_lacks_nothing(served):
    spec = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    assert list(lacks({"properties": {"spec": spec}}, {"properties": {"spec": spec}})) == []
    served["properties"]["spec"] = spec
    assert list(lacks(own_schema(), served)) == []


def test_maps_are_looked_into():
    own: dict[str, Any] = {"additionalProperties": {"properties": {"a": {}, "b": {}}}}
    assert list(lacks(own, {"additionalProperties": {"properties": {"a": {}}}})) == [".*.b"]


def test_the_sentence_names_fields_and_remedy():
    text = sentence(("spec.a", "spec.b", "spec.c", "spec.d", "spec.e", "spec.f", "spec.g"))
    assert "drops or rejects spec.a, spec.b, spec.c, spec.d, spec.e and 2 more; " in text
    assert "kubectl apply --server-side -f crds/specdecode.io_specdecodedeployments.yaml" in text


def test_a_status_keeps_what_the_definition_knows():
    schema = {
        "properties": {
            "conditions": {"items": {"properties": {"type": {}}}},
            "open": {"x-kubernetes-preserve-unknown-fields": True},
            "map": {"additionalProperties": {"properties": {"a": {}}}},
        }
    }
    status = {
        "conditions": [{"type": "Ready", "new": 1}],
        "open": {"any": 1},
        "map": {"x": {"a": 1, "b": 2}},
        "new": 1,
    }
    kept = {"conditions": [{"type": "Ready"}], "open": {"any": 1}, "map": {"x": {"a": 1}}}
    assert known_part(status, schema) == kept
    whole = {"properties": {"status": schema}}
    assert ServedCrd(whole, ("status.new",)).keep(status) == kept
    assert ServedCrd(whole, ()).keep(status) is status
    assert ServedCrd().keep(status) is status
