"""Classifies the errors with which the API server rejects the pods of a Deployment."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CreateFailure:
    """Why pods are not created: a reason for programs, a message with a remedy for people."""

    reason: str
    message: str


_KNOWN = (
    (
        r"exceeded quota: (\S+?),",
        "QuotaExceeded",
        "raise ResourceQuota {0}, lower resources, or free some of it",
    ),
    (
        r"violates PodSecurity",
        "PodSecurityRefused",
        "remove the changes of template.spec or models of file://, or relax the namespace's "
        "label pod-security.kubernetes.io/enforce",
    ),
    (
        r"no PriorityClass with name (\S+) was found",
        "PriorityClassMissing",
        "create PriorityClass {0}, or change template.spec.priorityClassName",
    ),
    (
        r"RuntimeClass \"?([^\s\"]+)\"? not found",
        "RuntimeClassMissing",
        "create RuntimeClass {0}, or change template.spec.runtimeClassName",
    ),
    (
        r"(?:must be less than or equal to|maximum \S+ usage per|minimum \S+ usage per)",
        "LimitRangeRefused",
        "change resources, or the namespace's LimitRange",
    ),
    (
        r"admission webhook \"([^\"]+)\" denied",
        "WebhookRefused",
        "comply with webhook {0}, or contact its administrator",
    ),
)


def classify_create_error(message: str) -> CreateFailure:
    """Return the reason, and the message with a remedy."""
    for pattern, reason, remedy in _KNOWN:
        found = re.search(pattern, message)
        if found:
            return CreateFailure(reason, f"{message}; {remedy.format(*found.groups())}")
    return CreateFailure("PodsNotCreated", message)
