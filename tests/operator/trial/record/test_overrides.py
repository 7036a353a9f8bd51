"""Promoted values in the place of fields of the spec, and how an edit ends them."""

from typing import Any

from specdecode_operator.trial.record.overrides import (
    Override,
    holding,
    merged,
    overridden,
    overrides_of,
)

SPEC: dict[str, Any] = {
    "pageSize": 16,
    "engine": {"device": "CPU", "scheduler": {"maxQueuedRequests": 8}},
}
CANDIDATE = {"pageSize": 32, "engine": {"scheduler": {"maxRunningRequests": 4}, "device": None}}
PROMOTED = {"pageSize": 32, "engine": {"scheduler": {"maxRunningRequests": 4}}}
FIELDS = ["engine.device", "engine.scheduler.maxRunningRequests", "pageSize"]


def fields(overrides):
    return [each.field for each in overrides]


def test_a_candidate_overrides_its_leaves_and_nothing_else():
    found = overrides_of(SPEC, CANDIDATE)
    assert fields(found) == FIELDS
    spec = overridden(SPEC, PROMOTED, found)
    assert spec == {
        "pageSize": 32,
        "engine": {"scheduler": {"maxQueuedRequests": 8, "maxRunningRequests": 4}},
    }
    assert SPEC["pageSize"] == 16


def test_an_edit_ends_the_override_of_its_field_only():
    found = overrides_of(SPEC, CANDIDATE)
    assert holding(SPEC, found) == found
    assert fields(holding(SPEC | {"replicas": 4}, found)) == FIELDS
    assert fields(holding(SPEC | {"pageSize": 8}, found)) == FIELDS[:2]
    set_now = {**SPEC, "engine": {**SPEC["engine"], "scheduler": {"maxRunningRequests": 64}}}
    assert fields(holding(set_now, found)) == ["engine.device", "pageSize"]
    removed = {**SPEC, "engine": {"scheduler": {}}}
    assert fields(holding(removed, found)) == FIELDS[1:]


def test_a_later_promotion_replaces_overrides_of_the_same_and_of_nested_fields():
    first = (Override("engine.scheduler.maxRunningRequests", "a"), Override("pageSize", "b"))
    second = (Override("engine.scheduler", "c"),)
    assert merged(first, second) == (Override("engine.scheduler", "c"), Override("pageSize", "b"))
    assert merged(first, (Override("pageSize", "d"),))[-1].spec_hash == "d"


def test_a_key_with_a_dot_is_part_of_the_value_above_it():
    candidate = {"engine": {"config": {"a.b": 1}}}
    found = overrides_of({}, candidate)
    assert fields(found) == ["engine.config"]
    assert overridden({}, candidate, found) == candidate
