"""URIs of checkpoints, read."""

import pytest

from specdecode_api.model_uri import (
    HubLocation,
    ImageLocation,
    NodeLocation,
    PvcLocation,
    parse_uri,
)


@pytest.mark.parametrize(
    ("uri", "location"),
    [
        ("pvc://models/llama", PvcLocation("models", "llama")),
        ("pvc://models/a/b.c", PvcLocation("models", "a/b.c")),
        ("pvc://models", PvcLocation("models", "")),
        ("file:///srv/models", NodeLocation("/srv/models")),
        ("hf://org/name", HubLocation("org/name", "main")),
        ("hf://org/name@refs/pr/1", HubLocation("org/name", "refs/pr/1")),
        ("oci://host:5000/a/b:v1", ImageLocation("host:5000/a/b:v1")),
        ("oci://host/a@sha256:00", ImageLocation("host/a@sha256:00")),
    ],
)
def test_uri_names_a_place(uri, location):
    assert parse_uri(uri) == location


@pytest.mark.parametrize(
    ("revision", "is_pinned"),
    [("0" * 40, True), ("main", False), ("0" * 39, False), ("A" * 40, False), ("0" * 41, False)],
)
def test_only_a_whole_commit_is_pinned(revision, is_pinned):
    assert HubLocation("org/name", revision).is_pinned is is_pinned
