"""The token for changes in pods without routers, which replaces no pods."""

import json
from dataclasses import replace

import pytest

from specdecode_api import names
from specdecode_operator import owned
from specdecode_operator.objects.kinds import child_id
from specdecode_operator.objects.observed import Observed
from specdecode_operator.objects.resource import parse
from specdecode_operator.plan.plan import plan
from specdecode_operator.settings import Settings

SETTINGS = Settings(engine_image="engine:test")


@pytest.fixture
def children(example):
    """The objects of a resource as they are built, which is what a release before wrote."""

    def of(**spec):
        return owned.build(parse(example(**spec)), "engine:test").children

    return of


def with_token(children, live=(), *, is_wanted=True):
    return owned.with_token(children, live, "uid-1", is_wanted=is_wanted)


def one(kind, children):
    (found,) = (each for each in children if each["kind"] == kind)
    return found


def server_of(children):
    return json.loads(one("ConfigMap", children)["data"]["boot.json"])["server"]


def secrets_of(children):
    """Names of the Secrets that the engine's pod mounts, by the path of the mount."""
    pod = one("Deployment", children)["spec"]["template"]["spec"]
    (engine,) = pod["containers"]
    named = {each["name"]: each["secret"] for each in pod["volumes"] if "secret" in each}
    assert all(each["optional"] for each in named.values())
    return {
        each["mountPath"]: named[each["name"]]["secretName"]
        for each in engine["volumeMounts"]
        if each["name"] in named
    }


def test_engines_without_routers_mount_the_token_and_require_it(children):
    found = with_token(children())
    assert secrets_of(found) == {names.ROUTER_TOKEN_FOLDER: names.ROUTER_SECRET}
    assert server_of(found)["router_token_path"] == names.ROUTER_TOKEN_FOLDER
    assert server_of(found)["owner"] == "uid-1"


def test_the_token_is_not_part_of_the_configuration(children):
    before = children()
    found = with_token(before)
    templates = [one("Deployment", each)["spec"]["template"] for each in (before, found)]
    assert templates[0]["metadata"] == templates[1]["metadata"]
    assert list(map(child_id, before)) == list(map(child_id, found))
    changed = {new["kind"] for old, new in zip(before, found, strict=True) if old != new}
    assert changed == {"ConfigMap", "Deployment"}


def test_running_pods_of_the_same_configuration_have_no_token(children):
    before = children()
    assert with_token(before, before) == list(before)
    changed = with_token(children(pageSize=64), before)
    assert names.ROUTER_TOKEN_FOLDER in secrets_of(changed)


def test_pods_keep_the_token_when_routers_are_forbidden(children):
    with_it = with_token(children())
    assert with_token(children(), with_it, is_wanted=False) == with_it
    assert secrets_of(with_token(children(), is_wanted=False)) == {}


def test_pods_for_routers_have_one_token_and_require_it(children):
    found = with_token(children(router={}))
    assert secrets_of(found) == {names.ROUTER_TOKEN_FOLDER: names.ROUTER_SECRET}
    assert one("Deployment", found) == one("Deployment", children(router={}))
    assert server_of(found)["owner"] == "uid-1"


def planned(observed, settings=SETTINGS):
    return [each.manifest for each in plan(observed, settings).writes]


def test_an_upgrade_of_the_operator_replaces_no_pods(example, live):
    manifest = example()
    old = [live(each) for each in owned.build(parse(manifest), "engine:test").children]
    written = planned(Observed(manifest, {child_id(each): each for each in old}))
    assert "router-token" not in json.dumps(written)
    assert secrets_of(planned(Observed(manifest, {})))


def test_an_operator_without_routers_mounts_no_token(example):
    settings = replace(SETTINGS, has_routers=False)
    assert secrets_of(planned(Observed(example(), {}), settings)) == {}


def test_a_users_volume_cannot_have_the_name_of_the_token(example):
    volumes = [{"name": "router-token", "emptyDir": {}}]
    manifest = example(template={"spec": {"volumes": volumes}})
    refused = plan(Observed(manifest, {}), SETTINGS).refused
    assert "router-token]: is managed by the operator" in str(refused)
