"""Which stored response a request names: the engine that stores it has to answer."""

import json
import re
from typing import Any, Final

from specdecode_api.response_names import name_in_item, name_in_response
from specdecode_router.routing.prompt_blocks import MAX_PARSED_BYTES

PATHS: Final = re.compile(r"/v1/responses/(?P<id>[^/]{1,512})(?P<part>/input_items|/cancel)?")
_METHODS: Final = {None: ("GET", "HEAD", "DELETE"), "/input_items": ("GET", "HEAD")}
_PREVIOUS: Final = re.compile(rb'"previous_response_id"\s*:\s*"(resp_[0-9a-f]{48})"')
_ITEM: Final = re.compile(rb'"id"\s*:\s*"([a-z]{1,8}_[0-9a-f]{48}_i?[0-9]{1,9})"')


def is_stored_path(method: str, path: str) -> bool:
    """Whether a request reads or deletes a stored response."""
    found = PATHS.fullmatch(path)
    return found is not None and method in _METHODS.get(found["part"], ("POST",))


def name_in_path(path: str) -> str | None:
    """Return the name of the response of such a path, if it has one."""
    found = PATHS.fullmatch(path)
    return found and name_in_response(found["id"])


def name_in_body(body: bytes) -> str | None:
    """Return the name of the response that a body of POST /v1/responses continues or refers to.

    Ids in whole items, which clients send again, name nothing that an engine has to have. Only a
    body that has the id of an item is parsed, if it is not too long.
    """
    if previous := _PREVIOUS.search(body):
        return name_in_response(previous[1].decode())
    first = _ITEM.search(body)
    if first is None:
        return None
    if len(body) > MAX_PARSED_BYTES:
        return name_in_item(first[1].decode()) if b'"item_reference"' in body else None
    try:
        items = json.loads(body)["input"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None  # an engine refuses it
    ids = [each["id"] for each in items if _is_reference(each)] if isinstance(items, list) else []
    return next(filter(None, map(name_in_item, ids)), None)


def _is_reference(item: Any) -> bool:
    if not isinstance(item, dict) or not isinstance(item.get("id"), str):
        return False
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and "role" not in item)
