"""What ends a command: sentences for the person who typed it."""

from http import HTTPStatus

from specdecode_api import names
from specdecode_operator.kinds import RESOURCE

DEFINITION = f"{RESOURCE.plural}.{RESOURCE.group}"


class PluginError(Exception):
    """A command that cannot be carried out; the text names value, place and remedy."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        """HTTP status of the answer, if there was one."""


def refusal(code: int, message: str, what: str, user: str) -> PluginError:
    """Say why the API server refused to give `what`, and what helps."""
    if code == HTTPStatus.UNAUTHORIZED:
        text = f"the API server does not know {user}; log in again, or choose another --context"
    elif code == HTTPStatus.FORBIDDEN:
        text = f"{user} may not read {what}: {message}; ask for {_role(what)} in that namespace"
    elif code == HTTPStatus.NOT_FOUND and what.startswith(DEFINITION):
        text = (
            f"this cluster has no definition {DEFINITION}; install it with the chart "
            "(helm install … --set crds.install=true), or choose another --context"
        )
    else:
        text = f"{what}: {message} ({code})"
    return PluginError(text, code)


def unreachable(server: str, why: str) -> PluginError:
    """Say that nobody answered."""
    return PluginError(
        f"no answer from {server}: {why}; is the cluster up, and is this the right --context? "
        "`kubectl cluster-info` asks the same server"
    )


def nobody(name: str, namespace: str, others: list[str]) -> PluginError:
    """Say that there is no resource of this name, and which there are."""
    there = f"there are {', '.join(others)}" if others else "there is none"
    return PluginError(
        f"no {names.KIND} {name} in namespace {namespace}; {there}; "
        "-n chooses another namespace, `kubectl specdecode status -A` lists all"
    )


def _role(what: str) -> str:
    # The built-in role view has no pods/proxy, for a proxy can do more than read.
    return "the role edit (or get on pods/proxy)" if "proxy" in what else "the role view"
