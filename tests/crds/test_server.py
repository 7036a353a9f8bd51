"""The dozens of resources against a real API server, and what else it makes of the definition."""

import re

import pytest

from specdecode_api import names
from specdecode_api.descriptions import field_descriptions
from specdecode_api.schema import custom_resource_definition, resource_schema
from specdecode_api.v1alpha1 import SpecDecodeDeployment

pytestmark = pytest.mark.apiserver


def test_definition_is_established_and_structural(server):
    conditions = {item["type"]: item for item in server.definition()["status"]["conditions"]}
    assert conditions["Established"]["status"] == "True"
    assert conditions["NamesAccepted"]["status"] == "True"
    assert "NonStructuralSchema" not in conditions


def test_definition_is_stored_as_written(server):
    stored = server.definition()["spec"]["versions"][0]
    written = custom_resource_definition()["spec"]["versions"][0]
    for key in ("schema", "subresources", "served", "storage"):
        assert stored[key] == written[key]


def test_good_resource_is_admitted(server, good_case):
    answer = server.try_out(good_case.resource)
    assert answer.status_code == 201, answer.json()["message"]


def test_a_resource_is_stored_as_it_was_written(server, good_case):
    """A stored default could not be distinguished from a value of the user, and stays for ever."""
    stored = server.try_out(good_case.resource).json()
    assert stored["spec"] == {"replicas": 1} | written(good_case.resource["spec"])
    filled = SpecDecodeDeployment.from_resource(good_case.resource)
    assert SpecDecodeDeployment.from_resource(stored).spec == filled.spec


def written(value):
    """A value without the nulls that the API server drops: not those in free objects."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if each is not None}
        return {k: each if k in ("spec", "config") else written(each) for k, each in kept.items()}
    return [written(each) for each in value] if isinstance(value, list) else value


def test_bad_resource_is_refused_with_place_and_remedy(server, bad_case):
    answer = server.try_out(bad_case.resource)
    assert answer.status_code in (400, 422), answer.text
    causes = causes_of(answer)
    assert any(bad_case.field in cause and bad_case.message in cause for cause in causes), causes


def test_bad_resource_is_refused_in_one_place(server, bad_case):
    echo = "some validation rules were not checked"
    causes = [cause for cause in causes_of(server.try_out(bad_case.resource)) if echo not in cause]
    assert all(bad_case.field in cause for cause in causes), causes


def test_every_field_is_explained(server):
    openapi = server.client.get(f"/openapi/v3/apis/{names.API_VERSION}").json()
    served = openapi["components"]["schemas"][f"io.specdecode.{names.VERSION}.{names.KIND}"]
    rows = [row for row in field_descriptions(served) if row.path[0] in ("spec", "status")]
    assert (
        len(rows)
        == len([row for row in field_descriptions(resource_schema()) if len(row.path) > 1]) + 2
    )
    assert [row.path for row in rows if not row.schema.get("description")] == []


def test_kubectl_get_shows_the_columns(server):
    resource = make(server, "columns")
    accept = {"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}
    table = server.client.get(server.resources, headers=accept).json()
    server.delete("columns")
    shown = dict(zip((c["name"] for c in table["columnDefinitions"]), row_of(table), strict=True))
    assert shown["Model"] == resource["spec"]["model"]["uri"]
    assert shown["Algorithm"] is None, "the operator reports it"
    assert shown["Desired"] == 1
    columns = table["columnDefinitions"]
    assert all(column["description"] for column in columns)
    narrow = [column["name"] for column in columns if column["priority"] == 0]
    assert narrow == [
        "Name",
        "Ready",
        "Replicas",
        "Algorithm",
        "Accept",
        "Tokens/s",
        "Trial",
        "Age",
    ]
    wide = {column["name"] for column in columns if column["priority"] == 1}
    assert wide == {
        *("Desired", "Reason", "Model", "Draft", "Policy", "Config", "Mode", "Gain", "Verdict"),
        "URL",
    }


def test_scale_changes_replicas(server):
    make(server, "scaled")
    path = f"{server.resources}/scaled"
    scale = server.client.get(f"{path}/scale").json()
    scale["spec"]["replicas"] = 5
    server.client.put(f"{path}/scale", json=scale).raise_for_status()
    assert server.client.get(path).json()["spec"]["replicas"] == 5
    server.delete("scaled")


def test_status_is_written_apart_and_merged_by_condition(server):
    make(server, "watched")
    path = f"{server.resources}/watched"
    for manager, kind in (("one", "Ready"), ("two", "Degraded")):
        answer = apply_status(server, path, manager, condition(kind))
        assert answer.status_code == 200, answer.text
    stored = server.client.get(path).json()
    assert {item["type"] for item in stored["status"]["conditions"]} == {"Ready", "Degraded"}
    assert stored["metadata"]["generation"] == 1
    server.delete("watched")


def test_status_is_checked(server):
    make(server, "checked")
    answer = apply_status(
        server, f"{server.resources}/checked", "one", {**condition("Ready"), "status": "Perhaps"}
    )
    server.delete("checked")
    assert answer.status_code == 422
    assert "status.conditions[0].status" in answer.json()["message"]


def test_short_name_and_category_are_discovered(server):
    found = server.client.get(f"/apis/{names.API_VERSION}").json()["resources"]
    ours = next(item for item in found if item["name"] == names.PLURAL)
    assert ours["shortNames"] == ["sdd"]
    assert ours["categories"] == ["specdecode"]


def causes_of(answer):
    """List the causes of a rejection, with indices of field paths in dotted form."""
    status = answer.json()
    causes = [
        f"{cause.get('field', '')}: {cause['message']}"
        for cause in status.get("details", {}).get("causes", ())
    ]
    return [re.sub(r"\[([^]]*)\]", r".\1", cause) for cause in causes or [status["message"]]]


def make(server, name):
    resource = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name},
        "spec": {"model": {"uri": "pvc://models/target"}},
    }
    answer = server.create(resource)
    assert answer.status_code == 201, answer.text
    return answer.json()


def row_of(table):
    return table["rows"][0]["cells"]


def condition(kind):
    return {
        "type": kind,
        "status": "False",
        "reason": "Waiting",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }


def apply_status(server, path, manager, item):
    name = path.rpartition("/")[2]
    return server.client.patch(
        f"{path}/status",
        params={"fieldManager": manager},
        headers={"Content-Type": "application/apply-patch+yaml"},
        json={
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name},
            "status": {"conditions": [item]},
        },
    )
