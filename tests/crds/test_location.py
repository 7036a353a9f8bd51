"""URIs of checkpoints, read."""

import pytest

from specdecode_api.location import ClaimLocation, NodeLocation, parse_uri


@pytest.mark.parametrize(
    ("uri", "location"),
    [
        ("pvc://models/llama", ClaimLocation("models", "llama")),
        ("pvc://models/a/b.c", ClaimLocation("models", "a/b.c")),
        ("pvc://models", ClaimLocation("models", "")),
        ("file:///srv/models", NodeLocation("/srv/models")),
    ],
)
def test_uri_names_a_place(uri, location):
    assert parse_uri(uri) == location
