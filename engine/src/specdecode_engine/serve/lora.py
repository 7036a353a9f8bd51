"""Loads and unloads LoRA adapters while the engine serves, by the endpoints of vLLM."""

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from specdecode_api import names
from specdecode_api.boot.adapters import check_adapter_name
from specdecode_engine.batch.adapters import AdapterRefused
from specdecode_engine.serve import errors
from specdecode_engine.serve.json_body import check_media_type, parse_strict_json
from specdecode_engine.serve.openai.service import Service, service_of
from specdecode_server.body import read_limited

router = APIRouter()

MAX_BYTES = 16 * 1024
MAX_UNLOAD_SECONDS = 1.0
"""Until an unload is answered although requests still have the adapter; it continues."""


class LoadOffer(BaseModel):
    """The adapter in a folder below `--lora-root`, and the name that requests choose it by."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    lora_name: Annotated[str, AfterValidator(check_adapter_name)]
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]
    load_inplace: Literal[False] | None = None


class UnloadOffer(BaseModel):
    """The name of an adapter; clients of vLLM may send its number too, which decides nothing."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    lora_name: Annotated[str, Field(min_length=1, max_length=256)]
    lora_int_id: int | None = None


@router.post(names.PATH_LOAD_ADAPTER)
async def load_lora_adapter(request: Request) -> dict[str, object]:
    """Let requests choose another adapter; running requests continue.

    A path that is not below the root and an adapter that is damaged or not supported are answered
    with 400; a name that has other content, and an engine without a free place, with 409.
    """
    service = _changeable(request)
    data = await read_limited(request, MAX_BYTES, "an adapter is named by its path")
    offer = await asyncio.to_thread(parse_strict_json, LoadOffer, data)
    try:
        await service.adapters.load(offer.lora_name, offer.lora_path)
    except AdapterRefused as error:
        status, code = (409, "adapter_conflict") if error.is_conflict else (400, "adapter_refused")
        raise errors.HttpError(status, str(error), code=code) from None
    return _described(service)


@router.post(names.PATH_UNLOAD_ADAPTER)
async def unload_lora_adapter(request: Request, response: Response) -> dict[str, object]:
    """Let no new request choose an adapter, and release it once its requests have ended.

    Where that takes longer than a moment, the answer is 202.
    """
    service = _changeable(request)
    data = await read_limited(request, MAX_BYTES, "an adapter is named by its name")
    offer = await asyncio.to_thread(parse_strict_json, UnloadOffer, data)
    try:
        async with asyncio.timeout(MAX_UNLOAD_SECONDS):
            await service.adapters.unload(offer.lora_name)
    except TimeoutError:
        response.status_code = 202
    except KeyError:
        raise errors.adapter_not_found(offer.lora_name, service.adapter_names) from None
    return _described(service)


def _changeable(request: Request) -> Service:
    check_media_type(request)
    service = service_of(request)
    service.lifecycle.check_admission()
    if not service.adapters.can_change:
        message = (
            "adapters are neither loaded nor unloaded while this engine serves; start it with "
            "--lora-root FOLDER and --max-loras N"
        )
        raise errors.HttpError(403, message, code="adapters_are_fixed")
    return service


def _described(service: Service) -> dict[str, object]:
    return {"adapters": [dict(one) for one in service.adapters.facts]}
