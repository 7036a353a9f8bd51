"""The ServiceAccount of engine pods, without a token and without permissions."""

from specdecode_operator.children.labels import child_labels
from specdecode_operator.kinds import SERVICE_ACCOUNT, Manifest


def service_account(name: str) -> Manifest:
    """ServiceAccount of a resource's engine pods."""
    return {
        "apiVersion": SERVICE_ACCOUNT.api_version,
        "kind": SERVICE_ACCOUNT.kind,
        "metadata": {"name": name, "labels": child_labels(name)},
        "automountServiceAccountToken": False,
    }
