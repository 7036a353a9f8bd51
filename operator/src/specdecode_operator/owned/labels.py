"""Labels of owned objects and pods.

Selectors contain only keys that never change during the lifetime of a resource; everything that
varies by revision is an annotation, because the selector of a Deployment is immutable.
"""

from typing import Final

from specdecode_api import names
from specdecode_api.v1alpha1.runtimes import RuntimeName

ROUTER: Final = "specdecode-router"
"""Name of the program, as the label `app.kubernetes.io/name` has it."""


def service_selector(name: str) -> dict[str, str]:
    """Select every engine pod of a resource, of any role."""
    return {
        names.LABEL_INSTANCE: name,
        names.LABEL_COMPONENT: names.COMPONENT_ENGINE,
        names.LABEL_DEPLOYMENT: name,
    }


def pod_selector(name: str, role: str = names.ROLE_STABLE) -> dict[str, str]:
    """Select the engine pods of one role."""
    return service_selector(name) | {names.LABEL_ROLE: role}


def runtime_selector(name: str, runtime: RuntimeName) -> dict[str, str]:
    """Select the engine pods that run another runtime than Specdecode."""
    return service_selector(name) | {names.LABEL_RUNTIME: runtime}


def router_selector(name: str) -> dict[str, str]:
    """Select every router pod of a resource."""
    return {names.LABEL_INSTANCE: name, names.LABEL_COMPONENT: names.COMPONENT_ROUTER}


def router_labels(name: str) -> dict[str, str]:
    """Labels of router pods; the operator does not list them."""
    return router_selector(name) | {
        names.LABEL_NAME: ROUTER,
        names.LABEL_PART_OF: names.PART_OF,
        names.LABEL_DEPLOYMENT: name,
    }


def child_labels(name: str) -> dict[str, str]:
    """Labels of every owned object; the labels of the resource are not copied.

    With copied labels, GitOps tools would consider the objects their own and prune them.
    """
    return service_selector(name) | {
        names.LABEL_NAME: "specdecode-engine",
        names.LABEL_PART_OF: names.PART_OF,
        names.LABEL_MANAGED_BY: names.FIELD_MANAGER,
    }


def pod_labels(name: str) -> dict[str, str]:
    """Labels of engine pods."""
    return child_labels(name) | pod_selector(name)


def selector_text(selector: dict[str, str]) -> str:
    """A selector in the format of `status.selector` and query strings."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
