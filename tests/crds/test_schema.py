"""What holds for every field of the definition."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from specdecode_api.base import CHANGE_KEY, Change
from specdecode_api.descriptions import field_descriptions
from specdecode_api.rules import VALIDATIONS_KEY
from specdecode_api.schema import custom_resource_definition, resource_schema
from specdecode_api.v1alpha1 import Spec

VERSION = custom_resource_definition()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
ROWS = {".".join(row.path): row for row in field_descriptions(resource_schema())}
SPEC_LEAVES = [
    name
    for name, row in ROWS.items()
    if name.startswith("spec.") and not any(other.startswith(f"{name}.") for other in ROWS)
]

# YAML 1.1, which kubectl and Helm read.
BOOLEAN_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false"}


def nodes(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield schema
    below = [*schema.get("properties", {}).values()]
    below += [schema.get("additionalProperties"), schema.get("items")]
    for child in below:
        if isinstance(child, Mapping):
            yield from nodes(child)


@pytest.mark.parametrize("name", SPEC_LEAVES)
def test_every_value_declares_how_it_changes(name):
    assert ROWS[name].change in {change.value for change in Change}


@pytest.mark.parametrize("name", ROWS)
def test_every_field_is_described(name):
    description = ROWS[name].schema.get("description", "")
    assert name == "metadata" or (description[:1].isupper() and description.endswith("."))


def test_only_known_fields_change_without_a_restart():
    hot = {
        name.removeprefix("spec.").rpartition("[].")[2]
        for name, row in ROWS.items()
        if row.change == Change.HOT
        and not name.startswith(("spec.rollout.", "spec.updateStrategy."))
    }
    assert hot == {
        *("upHysteresis", "downHysteresis", "ceilingCoeff", "emaAlpha"),
        *("updateInterval", "warmupBatches", "verifyTokens"),
        *("replicas", "engine.upgradePolicy"),
        *("speculation.adaptive.objective", "speculation.adaptive.maxInterTokenMs"),
        "speculation.draft.uri",  # where running engines can exchange the draft
        *("inferencePool.endpointPickerRef.name", "inferencePool.endpointPickerRef.failureMode"),
        "inferencePool.endpointPickerRef.port.number",
        *("router.replicas", "router.retries"),
        *("router.timeout", "router.maxConnections", "router.template.spec"),
        *("router.template.metadata.labels", "router.template.metadata.annotations"),
        *("router.resources.limits", "router.resources.requests"),
    }


@pytest.mark.parametrize("part", ["rollout", "updateStrategy"])
def test_no_part_of_a_rollout_needs_a_restart(part):
    rollout = {name: row for name, row in ROWS.items() if name.startswith(f"spec.{part}.")}
    values = [row.change for row in rollout.values() if row.change]
    assert len(values) > 3
    assert set(values) == {Change.HOT}


def test_no_word_of_an_enum_is_a_truth_in_yaml():
    for name, row in ROWS.items():
        words = row.schema.get("enum", ())
        if name.endswith(("conditions.[].status",)):
            continue  # True and False are what Kubernetes calls them
        assert not {word.lower() for word in words} & BOOLEAN_WORDS, name
        assert [yaml.safe_load(word) for word in words] == list(words), name


def test_nothing_of_ours_alone_is_left():
    assert all(CHANGE_KEY not in node for node in nodes(SCHEMA))
    assert all("title" not in node and "$ref" not in node for node in nodes(SCHEMA))


def test_status_makes_no_claims():
    status = SCHEMA["properties"]["status"]
    assert all("default" not in node for node in nodes(status))
    assert "required" not in status


def test_conditions_are_a_map_by_type():
    conditions = SCHEMA["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert "type" in conditions["items"]["required"]


ABSENT_IS_ANOTHER = {"adaptive": {"policy": "Static"}}
"""Who writes the part gets the field's default, who leaves the whole part out gets this."""


def test_default_of_a_part_has_every_default_of_its_fields():
    for node in nodes(resource_schema()["properties"]["spec"]):
        for name, child in node.get("properties", {}).items():
            if "properties" in child and "default" in child:
                inner = {k: v["default"] for k, v in child["properties"].items() if "default" in v}
                assert child["default"] == inner | ABSENT_IS_ANOTHER.get(name, {})


def test_the_definition_leaves_all_defaults_to_the_operator_but_that_of_replicas():
    spec = SCHEMA["properties"]["spec"]
    assert {
        name for node in nodes(spec) for name, child in node.get("properties", {}).items()
        if "default" in child
    } == {"replicas"}  # fmt: skip
    guard = spec["properties"]["rollout"]["properties"]["guard"]["properties"]
    assert guard["maxDuration"]["description"].endswith(" Default: 2h.")
    caching = spec["properties"]["engine"]["properties"]["kvCache"]["properties"]["prefixCaching"]
    assert caching["description"].endswith(" Default: true.")
    limits = spec["properties"]["router"]["properties"]["resources"]["properties"]["limits"]
    assert limits["description"].endswith(' Default: {"memory": "1Gi"}.')


def test_rules_have_the_defaults_of_the_fields_that_they_read():
    """A rule contains the value that counts where a field, or a part around it, is absent."""
    choice = re.compile(r"\((?:has\([\w.]+\) && )*has\(self\.([\w.]+)\) \? self\.\1 : ([^()?]+)\)")
    found = 0
    for node in nodes(resource_schema()["properties"]["spec"]):
        for rule in node.get(VALIDATIONS_KEY, ()):
            for path, text in choice.findall(f"{rule['rule']} {rule.get('messageExpression', '')}"):
                field = node
                for name in path.split("."):
                    field = field["properties"][name]
                # CEL writes texts with either quotation mark.
                value = json.loads(text.strip().replace("'", '"'))
                assert value == field.get("default", value), (path, text)
                found += "default" in field
    assert found > 20


def test_rule_names_a_field_that_exists():
    for node in nodes(SCHEMA):
        for rule in node.get(VALIDATIONS_KEY, ()):
            place = node
            for name in filter(None, rule.get("fieldPath", "").split(".")):
                place = place["properties"][name]


def test_message_is_one_line_with_a_remedy():
    for node in nodes(SCHEMA):
        for rule in node.get(VALIDATIONS_KEY, ()):
            assert "\n" not in rule["message"]
            assert not rule["message"].endswith(".")


def test_defaults_are_those_of_pydantic():
    spec = Spec.from_resource({"model": {"uri": "pvc://models/x"}})
    filled = spec.model_dump(by_alias=True, exclude_none=True, mode="json")
    properties = resource_schema()["properties"]["spec"]["properties"]
    assert {name: field["default"] for name, field in properties.items() if "default" in field} == {
        name: value for name, value in filled.items() if name != "model"
    }


def test_size_is_scalable():
    assert VERSION["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    assert VERSION["subresources"]["status"] == {}
