"""The tokens of routers over time: at each moment engines accept what every router sends."""

import base64
import itertools
from datetime import UTC, datetime, timedelta

import pytest

from specdecode_api import names
from specdecode_operator.cluster.token_rotation import LIFETIME, STEP, next_step

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def tokens(secret):
    return {key: base64.b64decode(text).decode() for key, text in secret["data"].items()}


def written(stored, now, fresh):
    """Return the Secret that the next step writes."""
    secret = next_step(stored, "ns", now, fresh).secret
    assert secret is not None
    return secret


def after(secret, wait, fresh):
    changed = secret["metadata"]["annotations"][names.ANNOTATION_TOKENS_CHANGED]
    return next_step(secret, "ns", datetime.fromisoformat(changed) + wait, fresh)


def test_the_first_secret_has_one_token():
    step = next_step(None, "ns", START, "one")
    assert step.secret is not None
    assert tokens(step.secret) == {"token": "one"}
    metadata = step.secret["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("specdecode-router-token", "ns")
    assert metadata["labels"][names.LABEL_MANAGED_BY] == "specdecode-operator"
    assert step.due_s == LIFETIME.total_seconds()


def test_a_rotation_lets_engines_accept_a_token_before_routers_send_it():
    secret = written(None, START, "one")
    found = [tokens(secret)]
    for wait, fresh in ((LIFETIME, "two"), (STEP, "-"), (STEP, "-"), (LIFETIME, "three")):
        early = after(secret, wait - SECOND, "early")
        assert (early.secret, early.due_s) == (None, 1.0)
        secret = after(secret, wait, fresh).secret
        found.append(tokens(secret))
    assert found == [
        {"token": "one"},
        {"token": "one", "next": "two"},
        {"token": "two", "previous": "one"},
        {"token": "two"},
        {"token": "two", "next": "three"},
    ]


def test_engines_with_an_older_secret_accept_routers_with_a_newer_one_and_the_reverse():
    """The kubelet may update either first, by less than a step."""
    secret = written(None, START, "t0")
    states = [secret]
    for i in range(9):
        secret = after(secret, LIFETIME, f"t{i + 1}").secret
        states.append(secret)
    for before, now in itertools.pairwise(states):
        for engine, router in ((before, now), (now, before)):
            assert tokens(router)["token"] in tokens(engine).values()


@pytest.mark.parametrize("time", ["", "yesterday", "2026-11-21T12:00:00"])
def test_without_a_readable_time_the_next_step_is_due(time):
    """As a person requests a rotation: by removing the annotation."""
    secret = written(None, START, "one")
    secret["metadata"]["annotations"] = {names.ANNOTATION_TOKENS_CHANGED: time} if time else {}
    step = next_step(secret, "ns", START, "two")
    assert tokens(step.secret) == {"token": "one", "next": "two"}


def test_a_time_in_the_future_counts_as_now_if_it_is_another_clocks_and_else_as_unknown():
    secret = written(None, START + STEP, "one")
    step = next_step(secret, "ns", START, "two")
    assert (step.secret, step.due_s) == (None, LIFETIME.total_seconds())
    secret = written(None, START + timedelta(days=900), "one")
    assert tokens(next_step(secret, "ns", START, "two").secret) == {"token": "one", "next": "two"}


@pytest.mark.parametrize(
    "data", [None, {}, {"token": ""}, {"token": "***"}, {"token": "/w=="}, {"other": "dG9rZW4="}]
)
def test_a_secret_without_a_readable_token_gets_one(data):
    secret = written(None, START, "one")
    secret["data"] = data
    assert tokens(next_step(secret, "ns", START, "two").secret) == {"token": "two"}


def test_a_secret_that_somebody_else_keeps_is_used_as_it_is():
    secret = written(None, START, "one")
    del secret["metadata"]["labels"]
    secret["data"] = {}
    assert next_step(secret, "ns", START + 2 * LIFETIME, "two").secret is None
