"""What a router makes of an engine's refusal."""

import pytest

from specdecode_router.upstream import Refusal


@pytest.mark.parametrize("body", [b"", b"not JSON", b"[]", b"[" * 60_000, b"\xff", b'{"error": 1}'])
def test_a_refusal_without_an_error_object_has_no_code(body):
    refusal = Refusal(500, {}, body)
    assert refusal.code is None
    assert refusal.body_for("/v1/chat/completions") == body
