"""Server-side apply of every optional object: with fields, emptied, removed, as GitOps tools do."""

import copy
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from specdecode_api import names
from specdecode_api.schema import resource_schema, trial_schema
from specdecode_api.v1alpha1 import SpecDecodeDeployment
from tests.crds.conftest import make_resource, read_cases
from tests.crds.test_trial import GOOD

pytestmark = pytest.mark.apiserver

Path = tuple[str, ...]
CLEARED: tuple[dict[str, Any] | None, ...] = ({}, None)
"""What becomes of a section: emptied, removed."""
MORE: tuple[dict[str, Any], ...] = (
    {"engine": {"config": {"scheduling": {"overlap": False}}}},
    {"speculation": {"algorithm": "MTP", "draft": {"uri": "pvc://m/d"}}},
)


def optional_objects(schema: dict[str, Any], above: Path = ()) -> Iterator[Path]:
    """Paths of all objects in a schema that a resource may leave out."""
    for name, field in schema.get("properties", {}).items():
        if field.get("type") == "object":
            if name not in schema.get("required", ()):
                yield (*above, name)
            yield from optional_objects(field, (*above, name))


PATHS = tuple(optional_objects(resource_schema()["properties"]["spec"]))


def at(document: Any, path: Path) -> Any:
    """What a resource has at a path; None for nothing."""
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def edited(spec: dict[str, Any], path: Path, value: dict[str, Any] | None) -> dict[str, Any]:
    """Replace the object at a path; remove it if `value` is None."""
    changed = copy.deepcopy(spec)
    inside = at(changed, path[:-1])
    if value is None:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return changed


@cache
def specs() -> tuple[dict[str, Any], ...]:
    cases = (case.resource["spec"] for case in read_cases("good").values())
    return (*cases, *(make_resource(spec)["spec"] for spec in MORE))


def spec_with(path: Path) -> dict[str, Any]:
    """A valid spec with fields at a path, if there is one of those that may lose them."""
    found = [spec for spec in specs() if at(spec, path)]
    free = (spec for spec in found if all(is_valid(edited(spec, path, each)) for each in CLEARED))
    return next(free, found[0])


def is_valid(spec: dict[str, Any]) -> bool:
    try:
        SpecDecodeDeployment.from_resource(make_resource(spec))
    except ValidationError:
        return False
    return True


def apply(server, collection: str, resource: dict[str, Any]) -> httpx.Response:
    answer: httpx.Response = server.client.patch(
        f"{collection}/{resource['metadata']['name']}",
        params={"fieldManager": "flux", "fieldValidation": "Strict"},
        headers={"Content-Type": "application/apply-patch+yaml"},
        content=json.dumps(resource),
    )
    return answer


def check_refusal(answer: httpx.Response) -> None:
    """It was refused by a rule of ours, or for a required field."""
    assert answer.status_code == 422, answer.text
    assert "null" not in answer.json()["message"].replace("<nil>: Invalid value: null", "")


@pytest.mark.parametrize("path", sorted(PATHS), ids=".".join)
def test_a_section_is_emptied_and_removed_by_apply(server, path):
    name, full = "applied", spec_with(path)
    for value in (at(full, path), *CLEARED):
        spec = edited(full, path, value)
        answer = apply(server, server.resources, make_resource(spec, name))
        if not is_valid(spec):
            check_refusal(answer)
            continue
        assert answer.is_success, answer.text
        assert at(answer.json()["spec"], path) == value
    server.delete(name)


def trial_of(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND_TRIAL,
        "metadata": {"name": "applied"},
        "spec": {"deployment": "chat", "candidate": {"pageSize": 32}, **spec},
    }


def trial_sections() -> dict[Path, dict[str, Any]]:
    """For each path a valid spec of a trial with fields there, where one is valid."""
    paths = optional_objects(trial_schema()["properties"]["spec"])
    pairs = ((path, spec) for path in paths for spec in GOOD.values() if at(spec, path))
    return dict(pairs)


@pytest.mark.parametrize(("path", "spec"), trial_sections().items(), ids=repr)
def test_a_section_of_a_trial_is_emptied_and_removed_by_apply(server, path, spec):
    """A candidate cannot be changed; whatever else is refused is refused by a rule as well."""
    spec = {**spec, "state": "Running", "promote": False}
    try:
        assert apply(server, server.trials, trial_of(spec)).status_code == 201
        for value in CLEARED:
            answer = apply(server, server.trials, trial_of(edited(spec, path, value)))
            if answer.is_success:
                assert at(answer.json()["spec"], path) == value
            else:
                check_refusal(answer)
                assert "cannot be changed" in answer.text
    finally:
        server.client.delete(f"{server.trials}/applied").raise_for_status()
