"""Environment variables of a command line: Secrets, fields, or variables of the pods."""

from collections.abc import Mapping
from typing import Any, Final

from specdecode_api import names
from specdecode_api.v1alpha1.runtimes import RuntimeName
from specdecode_api.v1alpha1.template import RESERVED_VARIABLES
from specdecode_operator.convert.result import ResourceDraft, as_written
from specdecode_operator.convert.secrets import (
    SecretReference,
    is_secret_name,
    may_contain_key,
    shown,
)

HUB_TOKENS: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
API_KEY_VARIABLE: Final = "VLLM_API_KEY"

_GPUS: Final = "Kubernetes chooses the GPUs of a pod"
_PLACE: Final = "it is a place of the machine on which the command line ran"
_CACHE: Final = "download.cacheClaim keeps downloads"
_OF_MACHINES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"), _GPUS),
    **dict.fromkeys(("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"), _CACHE),
    **dict.fromkeys(("TRANSFORMERS_CACHE", "VLLM_ASSETS_CACHE"), _CACHE),
    **dict.fromkeys(("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "USER"), _PLACE),
    **dict.fromkeys(("XDG_CACHE_HOME", "TMPDIR", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT"), _PLACE),
    **dict.fromkeys(("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"), _PLACE),
    **dict.fromkeys(("VLLM_HOST_IP", "VLLM_PORT", "HOST_IP"), "the operator sets addresses"),
}
_OF_BOTH: Final = ("NCCL_", "OTEL_")
"""Beginnings of variables that libraries of both runtimes read."""


def read_environment(
    draft: ResourceDraft, environment: Mapping[str, str], runtime: RuntimeName, name: str
) -> None:
    """Set what variables other than keys and tokens of the hub become.

    Args:
        name: of the resource, with which the name of a Secret begins.
    """
    plain, secret = dict[str, str](), list[str]()
    for variable, value in environment.items():
        is_secret = is_secret_name(variable) or may_contain_key(value)
        given = f"{variable}={'<secret>' if is_secret else shown([value])}"
        reason = _drop_reason(variable, runtime)
        if variable in (*HUB_TOKENS, API_KEY_VARIABLE):
            continue
        if variable == "HF_ENDPOINT" and not is_secret:
            draft.set("download.endpoint", value.rstrip("/"), given)
        elif reason is not None:
            draft.drop(given, reason)
        elif is_secret:
            secret.append(variable)
        else:
            plain[variable] = value
    _add_variables(draft, plain, secret, f"{name}-environment")


def _drop_reason(variable: str, runtime: RuntimeName) -> str | None:
    if variable in RESERVED_VARIABLES and variable != "HF_ENDPOINT":
        return RESERVED_VARIABLES[variable]
    if variable in _OF_MACHINES:
        return _OF_MACHINES[variable]
    if variable == "HF_ENDPOINT":
        return "it may contain a key; set download.endpoint to an address without one"
    if runtime == "Specdecode" and not variable.startswith(_OF_BOTH):
        return "runtime Specdecode does not read it"
    return None


def _add_variables(
    draft: ResourceDraft, plain: Mapping[str, str], secret: list[str], secret_name: str
) -> None:
    variables: list[dict[str, Any]] = [
        {"name": variable, "value": as_written(value)} for variable, value in plain.items()
    ]
    for variable in secret:
        reference = {"secretKeyRef": {"name": secret_name, "key": variable}}
        variables.append({"name": variable, "valueFrom": reference})
    if variables:
        container = {"name": names.ENGINE_CONTAINER, "env": variables}
        draft.set("template.spec.containers", [container], "environment")
    if secret:
        draft.secrets.append(
            SecretReference(
                secret_name,
                tuple((variable, variable) for variable in secret),
                "environment variables that may be keys",
            )
        )
