"""Which stored response a request names, and which engine stores it."""

import json
from typing import Any

import pytest

from specdecode_api.internal_api import EngineState
from specdecode_api.response_names import new_key, new_name
from specdecode_router.engines import EnginePool
from specdecode_router.routing.prompt_blocks import MAX_PARSED_BYTES
from specdecode_router.routing.stored_response import (
    is_stored_path,
    name_in_body,
    name_in_path,
)
from specdecode_router.settings import EngineAddress

NAME, OTHER = "0f" * 24, "1e" * 24
USER = {"role": "user", "content": "the fox"}
REFERENCE = {"type": "item_reference", "id": f"msg_{NAME}_0"}


def named(**body: Any) -> str | None:
    return name_in_body(json.dumps(body).encode())


def test_the_previous_response_is_named() -> None:
    assert named(input="x", previous_response_id=f"resp_{NAME}") == NAME
    both = {"input": [REFERENCE], "previous_response_id": f"resp_{OTHER}"}
    assert named(**both) == OTHER


def test_a_referenced_item_names_its_response() -> None:
    assert named(input=[USER, REFERENCE]) == NAME
    assert named(input=[{"id": f"rs_{NAME}_1"}]) == NAME
    assert named(input=[{"id": f"fc_{NAME}_i3", "type": None}]) == NAME


def test_a_whole_item_with_an_id_names_nothing() -> None:
    message = {"type": "message", "role": "assistant", "content": "x", "id": f"msg_{NAME}_0"}
    assert named(input=[USER, message, USER | {"id": f"msg_{NAME}_i1"}]) is None


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"{", b'{"input": 3}', b'{"previous_response_id": "resp_1"}',
        b'{"previous_response_id": null, "input": "x"}',
        b'{"input": 3, "id": "msg_%s_0"}' % NAME.encode(),
        b'{"input": [3, {"id": "msg_%s_0", "role": 1}]}' % NAME.encode(),
        b'"id": "msg_%s_0"' % NAME.encode(),
        b"[" * 5000 + b'"id": "msg_%s_0"' % NAME.encode(),
    ],
)  # fmt: skip
def test_other_bodies_name_nothing(body: bytes) -> None:
    assert name_in_body(body) is None


def test_a_text_that_contains_an_id_names_nothing() -> None:
    text = json.dumps({"previous_response_id": f"resp_{NAME}", "id": f"msg_{NAME}_0"})
    assert named(input=text) is None


def test_long_bodies_are_not_parsed() -> None:
    long = USER | {"content": "x" * MAX_PARSED_BYTES}
    assert named(input=[long, REFERENCE]) == NAME
    assert named(input=[long, USER | {"id": f"msg_{NAME}_0"}]) is None


def test_only_reads_and_deletes_are_stored_paths() -> None:
    path = f"/v1/responses/resp_{NAME}"
    assert [is_stored_path(each, path) for each in ("GET", "HEAD", "DELETE")] == [True] * 3
    assert is_stored_path("GET", f"{path}/input_items")
    assert is_stored_path("POST", f"{path}/cancel")
    for method, wrong in (
        ("POST", path),
        ("PUT", path),
        ("DELETE", f"{path}/input_items"),
        ("GET", f"{path}/cancel"),
        ("GET", f"{path}/input_items/x"),
        ("GET", "/v1/responses/"),
        ("GET", f"/v1/responses/{'x' * 513}"),
    ):
        assert not is_stored_path(method, wrong), (method, wrong)
    assert name_in_path(f"{path}/input_items") == name_in_path(path) == NAME
    assert name_in_path("/v1/responses/resp_1") is None
    assert name_in_path("/v1/models") is None


def state(key: bytes | None, reason: str | None = None) -> EngineState:
    return EngineState(
        reason=reason,
        resume_id="one",
        model="tiny",
        config_hash="",
        api_port=1,
        requests=0,
        capacity=1,
        max_body_bytes=1,
        response_key=None if key is None else key.hex(),
    )


def test_the_engine_that_issued_a_name_stores_its_response() -> None:
    pool = EnginePool(lambda: 0.0)
    addresses = [EngineAddress("127.0.0.1", port) for port in (1, 2, 3)]
    pool.update({each: (str(each), "") for each in addresses})
    engines = [pool.engines[each] for each in addresses]
    keys = (new_key(), new_key(), None)
    for engine, key in zip(engines, keys, strict=True):
        pool.report(engine, state(key))
    names = [new_name(keys[0]), new_name(keys[1])]
    assert [pool.storing(each) for each in names] == engines[:2]
    assert pool.storing(new_name(new_key())) is pool.storing(None) is None
    assert engines[1].named_for(names[1][:32]) == names[1]
    assert engines[2].named_for(names[1][:32]) == names[1][:32]
    pool.report(engines[0], state(keys[0], "draining"))
    assert pool.storing(names[0]) is engines[0]
    assert engines[0].answers_stored(0.0)
    assert not engines[0].is_usable(0.0)
    pool.report(engines[0], state(keys[0], "stopping"))
    assert pool.storing(names[0]) is None
    pool.lose(engines[1], "slow", has_ended=False)
    assert pool.storing(names[1]) is engines[1]
    pool.lose(engines[1], "refused", has_ended=True)
    assert pool.storing(names[1]) is None
