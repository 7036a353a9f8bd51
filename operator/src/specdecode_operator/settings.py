"""The operator's own knobs: environment first, flags over it, frozen afterwards."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

ENVIRONMENT_PREFIX = "SPECDECODE_"


def version() -> str:
    """Version of the installed operator."""
    return metadata.version("specdecode-operator")


def default_engine_image() -> str:
    """Image of the engine that was released together with this operator."""
    return f"specdecode-engine:{version()}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything an operator process can be told from outside."""

    engine_image: str
    namespaces: tuple[str, ...] = ()
    """Namespaces to serve; empty means the whole cluster."""
    kubeconfig: str | None = None
    health_port: int = 8080
    metrics_port: int = 9090
    workers: int = 8
    resync_seconds: float = 300.0
    start_timeout_seconds: float = 60.0
    request_timeout_seconds: float = 30.0
    log_level: str = "INFO"
    log_format: str = "json"


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Settings as the environment has them; flags replace single fields later.

    Raises:
        ValueError: when a variable is not what it should be, naming variable and value.
    """
    return Settings(
        engine_image=_read(environment, "ENGINE_IMAGE") or default_engine_image(),
        namespaces=tuple(_read(environment, "NAMESPACES").split()),
        kubeconfig=environment.get("KUBECONFIG") or None,
        health_port=int(_number(environment, "HEALTH_PORT", 8080)),
        metrics_port=int(_number(environment, "METRICS_PORT", 9090)),
        workers=int(_number(environment, "WORKERS", 8)),
        resync_seconds=_number(environment, "RESYNC_SECONDS", 300),
        start_timeout_seconds=_number(environment, "START_TIMEOUT_SECONDS", 60),
        log_level=_read(environment, "LOG_LEVEL").upper() or "INFO",
        log_format=_read(environment, "LOG_FORMAT").lower() or "json",
    )


def _read(environment: Mapping[str, str], name: str) -> str:
    return environment.get(ENVIRONMENT_PREFIX + name, "").strip()


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = _read(environment, name)
    try:
        return float(text) if text else default
    except ValueError:
        variable = ENVIRONMENT_PREFIX + name
        raise ValueError(f"{variable} is {text!r}; set it to a number or leave it out") from None
