"""Keys that are written into a SpecDecodeDeployment: not in its status, its events or the log."""

import copy
import json
import logging
from datetime import UTC, datetime

import pytest

from specdecode_api.schema import resource_schema
from specdecode_operator.objects.observed import Observed
from specdecode_operator.plan.plan import plan
from specdecode_operator.settings import Settings
from specdecode_operator.status import events
from specdecode_operator.status.outcome import Outcome
from specdecode_operator.status.status import status

SETTINGS = Settings(engine_image="specdecode-engine:test")
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MARK = "sk-canary"
KEYS = [f"{MARK}-{number:02}-5c1e77b0" for number in range(20)]
KEY = KEYS[0]
OF_CONTAINER = {
    "variable": {"env": [{"name": "HTTPS_PROXY", "value": KEY}]},
    "reserved variable": {"env": [{"name": "HOME", "value": KEY}]},
    "variable of a Secret": {
        "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "keys", "key": KEY}}}]
    },
    "variables in no list": {"env": {"name": "A", "value": KEY}},
    "variable in no object": {"env": [KEY]},
    "command": {"command": ["sh", "-c", KEY]},
    "image": {"image": KEY},
}
OF_POD = {
    "volume of a Secret": {"volumes": [{"name": "keys", "secret": {"secretName": KEY}}]},
    "volume in no object": {"volumes": [KEY]},
    "annotation of a host": {"hostAliases": [{"ip": KEY, "hostnames": [KEY]}]},
}
OF_BOOT = {
    "unknown value": {"device": KEY},
    "bound": {"memory": {"max_total_tokens": KEY}},
    "managed": {"server": {"api_key_path": KEY, "owner": KEY}},
    "list": {"graphs": {"batch_sizes": [KEY, KEY]}},
}


def leaves(schema, path=()):
    """Paths of the fields of a schema; item 0 of lists and key "1" of maps."""
    if "properties" in schema:
        for name, field in schema["properties"].items():
            yield from leaves(field, (*path, name))
    elif "items" in schema:
        yield from leaves(schema["items"], (*path, 0))
    elif isinstance(schema.get("additionalProperties"), dict):
        yield from leaves(schema["additionalProperties"], (*path, "1"))
    else:
        yield path


def put(spec, path, value):
    """Set a field, and what contains it where that is missing."""
    for name in reversed(path[1:]):
        value = [value] if name == 0 else {name: value}
    old, name = spec, path[0]
    while isinstance(value, dict) and isinstance(old.get(name), dict):
        old, (name, value) = old[name], next(iter(value.items()))
    old[name] = value


@pytest.fixture
def shown(caplog):
    """Everything that the operator reports of a resource."""

    def of(manifest):
        with caplog.at_level(logging.DEBUG):
            observed = Observed(manifest, {})
            found = status(observed, plan(observed, SETTINGS), Outcome(), NOW)
        posted = events.transitions(manifest, found, NOW)
        return json.dumps([found, posted]) + caplog.text

    return of


def test_no_field_with_a_key_is_repeated(example, shown):
    paths = list(leaves(resource_schema()["properties"]["spec"]))
    assert len(paths) > 100
    for number, path in enumerate(paths):
        manifest = copy.deepcopy(example())
        put(manifest["spec"], path, KEYS[number % len(KEYS)])
        assert MARK not in shown(manifest), path


@pytest.mark.parametrize("given", OF_CONTAINER.values(), ids=OF_CONTAINER)
def test_no_key_of_a_container_is_repeated(given, example, shown):
    spec = {"containers": [{"name": "engine", **given}]}
    assert MARK not in shown(example(template={"spec": spec}))


@pytest.mark.parametrize("given", OF_POD.values(), ids=OF_POD)
def test_no_key_of_a_pod_is_repeated(given, example, shown):
    assert MARK not in shown(example(template={"spec": given}))


@pytest.mark.parametrize("given", OF_BOOT.values(), ids=OF_BOOT)
def test_no_key_in_a_setting_of_the_engine_is_repeated(given, example, shown):
    found = shown(example(engine={"config": given}))
    assert MARK not in found
    assert '"reason": "Invalid"' in found
