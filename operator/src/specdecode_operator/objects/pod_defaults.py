"""What the administrator of the operator sets in the pods of all engines."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class CaBundle:
    """CA certificates in PEM format: a key of a ConfigMap in the namespace of each resource."""

    config_map: str
    key: str


@dataclass(frozen=True, slots=True)
class PodDefaults:
    """Settings of the pods of all engines; empty ones leave what the operator writes."""

    pod_security: Mapping[str, Any] = field(default_factory=dict)
    """Replaces the security context of pods."""
    container_security: Mapping[str, Any] = field(default_factory=dict)
    """Replaces the security context of the containers of engine and download."""
    ca_bundle: CaBundle | None = None
    """Trusted by downloads and routers."""


NO_DEFAULTS = PodDefaults()


def pod_defaults(pod_security: str, container_security: str, ca_bundle: str) -> PodDefaults:
    """Read settings from text; empty text sets nothing.

    Args:
        pod_security: JSON object.
        container_security: JSON object.
        ca_bundle: CONFIGMAP/KEY.

    Raises:
        ValueError: a text has another form; the message contains the variable and its value.
    """
    return PodDefaults(
        _context("SPECDECODE_POD_SECURITY_CONTEXT", pod_security),
        _context("SPECDECODE_CONTAINER_SECURITY_CONTEXT", container_security),
        _ca_bundle("SPECDECODE_CA_BUNDLE", ca_bundle) if ca_bundle else None,
    )


def _context(variable: str, text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f'{variable} is {text!r}; set it to a JSON object: {{"runAsUser": 1000}}')
    return found


def _ca_bundle(variable: str, text: str) -> CaBundle:
    config_map, _, key = text.partition("/")
    if not config_map or not key or "/" in key:
        raise ValueError(f"{variable} is {text!r}; set it to CONFIGMAP/KEY: ca/ca-bundle.crt")
    return CaBundle(config_map, key)
