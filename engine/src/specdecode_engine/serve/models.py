"""GET /v1/models: the one model that is served here."""

from fastapi import APIRouter, Request

from specdecode_engine.serve import errors
from specdecode_engine.serve.service import Service, service_of

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, object]:
    """List the served model."""
    return {"object": "list", "data": [_describe(service_of(request))]}


@router.get("/v1/models/{name:path}")
async def get_model(name: str, request: Request) -> dict[str, object]:
    """Describe the served model, asked for by its name."""
    service = service_of(request)
    if name != service.served_name:
        message = f"model {name!r} is not served here; use {service.served_name!r}"
        raise errors.ApiError(404, message, param="model", code="model_not_found")
    return _describe(service)


def _describe(service: Service) -> dict[str, object]:
    service.lifecycle.check_admission()
    return {
        "id": service.served_name,
        "object": "model",
        "created": service.created,
        "owned_by": "specdecode",
        "max_model_len": service.engine.context_length,
    }
