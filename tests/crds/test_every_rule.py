"""Every rule of both definitions refuses a resource of the tables on the real API server."""

from collections.abc import Iterator
from typing import Any

import pytest

from specdecode_api.rules import VALIDATIONS_KEY
from specdecode_api.schema import resource_schema, trial_schema
from tests.crds.conftest import read_cases
from tests.crds.test_server import causes_of
from tests.crds.test_trial import BAD, CHANGES, LATE

pytestmark = pytest.mark.apiserver


def rules(schema: dict[str, Any]) -> Iterator[str]:
    """Messages of all rules of a schema."""
    for rule in schema.get(VALIDATIONS_KEY, ()):
        yield rule["message"]
    inner = [*(schema.get("properties") or {}).values()]
    inner += [each for key in ("items", "additionalProperties") if (each := schema.get(key))]
    for each in inner:
        if isinstance(each, dict):
            yield from rules(each)


def test_every_rule_of_a_deployment_refuses_a_resource(server):
    causes = [
        cause
        for case in read_cases("bad").values()
        for cause in causes_of(server.try_out(case.resource))
    ]
    found = set(rules(resource_schema()))
    assert len(found) > 40
    assert {each for each in found if not any(each in cause for cause in causes)} == set()


def test_every_rule_of_a_trial_is_in_the_tables():
    """Each row of the tables is tried on the API server by `test_trial.py`."""
    tested = [message for _, _, message in (*BAD.values(), *CHANGES.values())] + [LATE]
    found = set(rules(trial_schema()))
    assert len(found) > 10
    assert {each for each in found if not any(message in each for message in tested)} == set()
