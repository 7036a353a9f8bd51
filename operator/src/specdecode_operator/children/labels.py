"""Labels of children and pods.

Selectors hold only keys that never change during the life of a resource; anything that varies by
revision is an annotation, so that a Deployment's selector (immutable) never needs an edit.
"""

from specdecode_api import names


def service_selector(name: str) -> dict[str, str]:
    """Selects every engine pod of a resource, whatever its role."""
    return {
        names.LABEL_INSTANCE: name,
        names.LABEL_COMPONENT: names.COMPONENT_ENGINE,
        names.LABEL_DEPLOYMENT: name,
    }


def pod_selector(name: str, role: str = names.ROLE_STABLE) -> dict[str, str]:
    """Selects the engine pods of one role."""
    return service_selector(name) | {names.LABEL_ROLE: role}


def child_labels(name: str) -> dict[str, str]:
    """Labels of every child; the resource's own labels are not copied.

    Copied labels make GitOps tools believe that they own the children and prune them.
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
    """A selector as `status.selector` and query strings spell it."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
