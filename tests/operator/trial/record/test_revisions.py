"""ControllerRevisions: built, read, found by config hash, and deleted when they are many."""

import json

import pytest

from specdecode_api import names
from specdecode_api.table import TableEntry
from specdecode_operator.objects.resource import parse
from specdecode_operator.trial.record.revisions import (
    KEPT,
    MAX_HASHES,
    BadRevision,
    explaining,
    next_number,
    pinned,
    read_revision,
    rendered_as,
    revision,
    revision_manifest,
    surplus,
)

SPEC = {"model": {"uri": "pvc://models/x"}, "engine": {"image": "e@sha256:1", "device": "CPU"}}
TABLE = {"1": TableEntry(candidate_steps=(0, 3)), "8": TableEntry(candidate_steps=(0,))}


@pytest.fixture
def owner(example):
    manifest = example()
    return parse({**manifest, "metadata": {**manifest["metadata"], "uid": "u-1"}})


def test_a_revision_survives_a_round_trip_as_json(owner):
    accepted = revision("chat", 3, SPEC, "v1-a", TABLE)
    manifest = json.loads(json.dumps(revision_manifest(accepted, owner)))
    assert read_revision(manifest) == accepted
    assert manifest["revision"] == 3
    assert manifest["metadata"]["namespace"] == owner.namespace


def test_a_revision_is_owned_and_found_by_the_operators_selector(owner):
    metadata = revision_manifest(revision("chat", 1, SPEC, "v1-a"), owner)["metadata"]
    (reference,) = metadata["ownerReferences"]
    assert (reference["kind"], reference["uid"]) == (names.KIND, "u-1")
    assert metadata["labels"][names.LABEL_MANAGED_BY] == names.FIELD_MANAGER
    assert metadata["labels"][names.LABEL_DEPLOYMENT] == "chat"


def test_the_name_depends_on_configuration_and_table_only():
    first = revision("chat", 1, SPEC, "v1-a")
    assert revision("chat", 9, SPEC, "v1-b").name == first.name
    assert revision("chat", 1, SPEC, "v1-a", TABLE).name != first.name
    assert revision("chat", 1, {**SPEC, "pageSize": 8}, "v1-a").name != first.name
    assert first.name.startswith("chat-")


def test_pinning_adds_the_image_where_there_is_none():
    assert pinned({"pageSize": 8}, "e:1") == {"pageSize": 8, "engine": {"image": "e:1"}}
    assert pinned(SPEC, "e:2") == SPEC


def test_numbers_begin_with_one_and_rise():
    assert next_number([]) == 1
    assert next_number([revision("chat", 4, SPEC, "a"), revision("chat", 2, SPEC, "b")]) == 5


def test_a_deployment_is_explained_by_the_newest_revision_with_its_hash():
    old, new = revision("chat", 1, SPEC, "v1-a"), revision("chat", 2, SPEC, "v1-a", TABLE)
    assert explaining("v1-a", [new, old]) == new
    assert explaining("v1-b", [new, old]) is None
    later = rendered_as(old, "v1-b")
    assert explaining("v1-b", [new, later]) == later


def test_a_revision_remembers_the_latest_hashes_once_each():
    accepted = revision("chat", 1, SPEC, "v1-0")
    for number in [*range(12), 11]:
        accepted = rendered_as(accepted, f"v1-{number}")
    assert accepted.config_hashes == tuple(f"v1-{n}" for n in range(12 - MAX_HASHES, 12))


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (None, "data is NoneType"),
        ([], "data is list"),
        ({}, "data.spec is NoneType"),
        ({"spec": "x"}, "data.spec is str"),
        ({"spec": {}, "table": {"0": {"candidate_steps": [1]}}}, "data.table.0"),
        ({"spec": {}, "table": {"1": {"candidate_steps": [99]}}}, "data.table.1.candidate_steps.0"),
        ({"spec": {}, "table": {"1": 5}}, "data.table.1: 5"),
        ({"spec": {}, "table": [1]}, "data.table: [1]"),
    ],
)
def test_other_data_is_refused_with_its_place(data, place):
    with pytest.raises(BadRevision) as caught:
        read_revision({"metadata": {"name": "chat-1"}, "data": data, "revision": 1})
    assert str(caught.value).startswith("ControllerRevision chat-1 cannot be read: ")
    assert place in str(caught.value)
    assert "restore it from a backup, or delete it" in str(caught.value)


def test_revisions_in_use_and_the_newest_others_are_kept():
    specs = [revision("chat", number, {"pageSize": number}, "h") for number in range(1, 15)]
    used = frozenset({specs[0].name, specs[13].name})
    assert [each.number for each in surplus(specs, used)] == [3, 2]
    assert surplus(specs[:KEPT], frozenset()) == ()
