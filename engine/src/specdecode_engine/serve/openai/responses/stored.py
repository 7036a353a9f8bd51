"""Stored responses in POST /v1/responses: what a request continues, and where its response goes."""

import asyncio
from dataclasses import dataclass
from functools import partial

from specdecode_api.response_names import name_in_item, name_in_response
from specdecode_engine.serve import errors
from specdecode_engine.serve.control.response_store import ResponseStore, StoredResponse
from specdecode_engine.serve.openai.admission import CallOrigin, MakeFormatter
from specdecode_engine.serve.openai.responses.conversation import Named, join_conversation
from specdecode_engine.serve.openai.responses.formatter import ResponsesFormatter
from specdecode_engine.serve.openai.responses.protocol import ItemReference, ResponsesBody
from specdecode_engine.serve.openai.service import Service

MAX_REFERENCES = 1024
FLAG = "start the engine with --response-store-bytes (serving.responses.store)"


@dataclass(frozen=True, slots=True)
class Recording:
    """Where a finished response is kept; the others are as in `StoredResponse`."""

    store: ResponseStore
    name: str
    owner: bytes
    items: bytes
    num_new: int

    def keep(self, response: bytes) -> bool:
        """Keep a response; return whether there was room."""
        return self.store.put(self.name, self.owner, response, self.items, self.num_new)


async def resolve(
    body: ResponsesBody, service: Service, origin: CallOrigin, owner: bytes
) -> tuple[ResponsesBody, MakeFormatter[ResponsesBody]]:
    """Return the body with the items that it names, and what makes the formatter of its response.

    A response whose name is of another engine, which began it, is not kept: it would not be found.

    Raises:
        HttpError: the body needs a store that is not there, or names what this owner has not.
    """
    store = service.responses
    if store is None:
        _check_unstored(body)
        return body, ResponsesFormatter
    named = _look_up(body, store, owner)
    is_kept = body.store is not False and store.has_issued(origin.request_id)
    if not named and not is_kept:
        return body, ResponsesFormatter
    join = partial(join_conversation, body, named, origin.request_id, service.max_body_bytes)
    whole, items = await asyncio.to_thread(join)
    if not is_kept:
        return whole, ResponsesFormatter
    recording = Recording(store, origin.request_id, owner, items, len(body.input))
    return whole, partial(ResponsesFormatter, keep=recording.keep)


def _check_unstored(body: ResponsesBody) -> None:
    if body.store:
        _refuse("store", f"store is true: responses are not stored here: {FLAG}")
    if body.previous_response_id is not None:
        shown = body.previous_response_id[: errors.SHOWN_VALUE_CHARS]
        _refuse(
            "previous_response_id",
            f"previous_response_id is {shown!r}: responses are not stored here: send the earlier "
            f"items in input, or {FLAG}",
        )
    for position, item in enumerate(body.input):
        if isinstance(item, ItemReference):
            place = f"input[{position}]"
            _refuse(
                place,
                f"{place} is an item_reference, and responses are not stored here: "
                f"send the item itself, or {FLAG}",
            )


def _refuse(field: str, message: str) -> None:
    raise errors.invalid(field, f"{message}; with store: false clients send whole conversations")


def _look_up(body: ResponsesBody, store: ResponseStore, owner: bytes) -> Named:
    """Find the responses that a body names."""
    references = {
        position: item
        for position, item in enumerate(body.input)
        if isinstance(item, ItemReference)
    }
    if len(references) > MAX_REFERENCES:
        raise errors.invalid(
            "input",
            f"input has {len(references)} items of type item_reference; at most {MAX_REFERENCES} "
            "are accepted; send previous_response_id, or the items themselves",
        )
    previous, previous_id = None, body.previous_response_id
    if previous_id is not None:
        previous = store.get(name_in_response(previous_id), owner)
        if previous is None:
            raise errors.response_not_found(previous_id, "previous_response_id")
    of_items = dict[int, StoredResponse]()
    for position, item in references.items():
        record = store.get(name_in_item(item.id), owner)
        if record is None:
            raise errors.response_not_found(item.id, f"input[{position}].id")
        of_items[position] = record
    return Named(previous, of_items)
