"""GET and DELETE of a stored response, and its input items."""

from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from specdecode_api.response_names import name_in_response
from specdecode_engine.serve import errors
from specdecode_engine.serve.control.response_store import StoredResponse
from specdecode_engine.serve.json_body import MEDIA_TYPE
from specdecode_engine.serve.openai.json_text import to_json
from specdecode_engine.serve.openai.responses.conversation import (
    as_list,
    beginning_of,
    id_of,
)
from specdecode_engine.serve.openai.responses.protocol import LOGPROBS
from specdecode_engine.serve.openai.responses.stored import FLAG
from specdecode_engine.serve.openai.service import service_of
from specdecode_server.api_keys import key_digest

router = APIRouter()

PATH: Final = "/v1/responses/{response_id}"
PATH_ITEMS: Final = f"{PATH}/input_items"
PATH_CANCEL: Final = f"{PATH}/cancel"
DEFAULT_LIMIT: Final = 20
MAX_LIMIT: Final = 100


@router.get(PATH)
async def get_response(request: Request, response_id: str) -> Response:
    record = _find(request, response_id)
    _check_include(request)
    if request.query_params.get("stream", "false").lower() not in ("false", "0", ""):
        raise _bad_parameter(request, "stream", "a stored response is not streamed; remove it")
    if "starting_after" in request.query_params:
        raise _bad_parameter(
            request, "starting_after", "it continues streams, and a stored response is not "
            "streamed; remove it",
        )  # fmt: skip
    return Response(record.response, media_type=MEDIA_TYPE)


@router.delete(PATH)
async def delete_response(request: Request, response_id: str) -> Response:
    _find(request, response_id)
    store = service_of(request).responses
    assert store is not None
    store.remove(name_in_response(response_id), key_digest(request))
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


@router.get(PATH_ITEMS)
async def list_input_items(request: Request, response_id: str) -> Response:
    """Return a page of the items of the conversation before a response."""
    record = _find(request, response_id)
    _check_include(request)
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise _bad_parameter(request, "order", "send asc or desc")
    limit = _limit(request)
    lines = record.items.split(b"\n")
    if order == "desc":
        lines.reverse()
    start = _start(request, lines)
    page, has_more = lines[start : start + limit], len(lines) > start + limit
    ends = [id_of(page[0]), id_of(page[-1])] if page else [None, None]
    rest = {"first_id": ends[0], "last_id": ends[1], "has_more": has_more}
    body = b'{"object":"list","data":%s,%s' % (as_list(page), to_json(rest)[1:])
    return Response(body, media_type=MEDIA_TYPE)


@router.post(PATH_CANCEL)
async def cancel_response(request: Request, response_id: str) -> Response:
    _find(request, response_id)
    raise errors.invalid(
        "response_id",
        "only a response with background: true can be cancelled, and background is not supported "
        "here; close the connection of a request to end it",
    )


def _find(request: Request, response_id: str) -> StoredResponse:
    store = service_of(request).responses
    if store is None:
        message = f"responses are not stored here: {FLAG}"
        raise errors.HttpError(404, message, param="response_id", code="response_not_found")
    record = store.get(name_in_response(response_id), key_digest(request))
    if record is None:
        raise errors.response_not_found(response_id, "response_id")
    return record


def _check_include(request: Request) -> None:
    query = request.query_params
    if LOGPROBS in (*query.getlist("include"), *query.getlist("include[]")):
        raise errors.invalid(
            "include",
            f"include has {LOGPROBS}; logprobs are available from /v1/chat/completions only; "
            "remove it",
        )


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", str(DEFAULT_LIMIT))
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and 1 <= int(text) <= MAX_LIMIT):
        raise _bad_parameter(request, "limit", f"send a number from 1 to {MAX_LIMIT}")
    return int(text)


def _start(request: Request, lines: list[bytes]) -> int:
    """Return where the page begins: after the item that `after` names."""
    if (after := request.query_params.get("after")) is None:
        return 0
    beginning = beginning_of(after)
    for position, line in enumerate(lines):
        if line.startswith(beginning):
            return position + 1
    raise _bad_parameter(request, "after", "no item of this response has this id; send a last_id")


def _bad_parameter(request: Request, name: str, remedy: str) -> errors.HttpError:
    shown = request.query_params[name][: errors.SHOWN_VALUE_CHARS]
    return errors.invalid(name, f"{name} is {shown!r}: {remedy}")
