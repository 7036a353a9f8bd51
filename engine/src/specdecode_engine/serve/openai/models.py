"""GET /v1/models, and /model_info as in SGLang: the model that is served, and its adapters."""

from fastapi import APIRouter, Request

from specdecode_engine.serve.openai.service import Service, service_of

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, object]:
    service = service_of(request)
    adapters = [_describe_adapter(service, name) for name in service.adapter_names]
    return {"object": "list", "data": [_describe_model(service), *adapters]}


@router.get("/v1/models/{name:path}")
async def get_model(name: str, request: Request) -> dict[str, object]:
    service = service_of(request)
    adapter = service.adapter_of(name)
    return _describe_adapter(service, adapter) if adapter else _describe_model(service)


@router.get("/model_info")
@router.get("/get_model_info")
async def get_model_info(request: Request) -> dict[str, object]:
    service = service_of(request)
    service.lifecycle.check_admission()
    path = service.boot.model.path
    return {
        "model_path": path,
        "served_model_name": service.served_name,
        "tokenizer_path": path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "has_image_understanding": False,
        "has_audio_understanding": False,
    }


def _describe_model(service: Service) -> dict[str, object]:
    service.lifecycle.check_admission()
    return {
        "id": service.served_name,
        "object": "model",
        "created": service.created,
        "owned_by": "specdecode",
        "root": service.boot.model.path,
        "parent": None,
        "max_model_len": service.engine.context_length,
    }


def _describe_adapter(service: Service, name: str) -> dict[str, object]:
    root = service.adapters.paths[name]
    own = {"id": name, "root": root, "parent": service.served_name}
    return _describe_model(service) | own
