"""Whether an engine runs a version of vLLM that is supported."""

from pydantic import BaseModel, ValidationError

from specdecode_api.report import Degradation
from specdecode_api.v1alpha1.runtimes import VLLM_VERSIONS

REASON = "RuntimeVersionUnsupported"


class VllmVersion(BaseModel):
    """The response to `GET /version`; other keys are ignored."""

    version: str


def version_degradations(body: bytes) -> tuple[Degradation, ...]:
    """Degradations by the response of vLLM's `GET /version`."""
    try:
        version = VllmVersion.model_validate_json(body).version[:64]
    except ValidationError:
        version = "unknown"
    if ".".join(version.split(".")[:2]) in VLLM_VERSIONS:
        return ()
    message = (
        f"vLLM has version {version}; {' and '.join(VLLM_VERSIONS)} are supported: set "
        "engine.image or the chart's vllm.image to one of them"
    )
    return (Degradation(reason=REASON, message=message),)
