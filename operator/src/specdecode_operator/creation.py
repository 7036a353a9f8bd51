"""Why a Deployment cannot make pods, from what the API server told its controller."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why pods are not made: a word for programs, a sentence with a remedy for people."""

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
        "take back what pod.template.spec changes, or file:// models, or relax the namespace's "
        "label pod-security.kubernetes.io/enforce",
    ),
    (
        r"no PriorityClass with name (\S+) was found",
        "PriorityClassMissing",
        "create PriorityClass {0}, or change pod.priorityClassName",
    ),
    (
        r"RuntimeClass \"?([^\s\"]+)\"? not found",
        "RuntimeClassMissing",
        "create RuntimeClass {0}, or change pod.runtimeClassName",
    ),
    (
        r"(?:must be less than or equal to|maximum \S+ usage per|minimum \S+ usage per)",
        "LimitRangeRefused",
        "change resources, or the namespace's LimitRange",
    ),
    (
        r"admission webhook \"([^\"]+)\" denied",
        "WebhookRefused",
        "do what webhook {0} asks for, or ask whoever runs it",
    ),
)


def refusal(message: str) -> Refusal:
    """Name the refusal, and add what helps."""
    for pattern, reason, remedy in _KNOWN:
        found = re.search(pattern, message)
        if found:
            return Refusal(reason, f"{message}; {remedy.format(*found.groups())}")
    return Refusal("PodsNotCreated", message)
