"""Errors that end a command, as messages for its user."""

from collections.abc import Sequence
from http import HTTPStatus

from specdecode_api import names
from specdecode_operator.objects.kinds import RESOURCE, TRIAL

CRDS = tuple(f"{kind.plural}.{kind.group}" for kind in (RESOURCE, TRIAL))


class PluginError(Exception):
    """A failed command; the message contains value, object and remedy."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        """HTTP status of the response, if there was one."""


def refusal(code: int, message: str, what: str, user: str, verb: str = "read") -> PluginError:
    """Explain why the API server rejected a request for `what`, with a remedy."""
    if code == HTTPStatus.UNAUTHORIZED:
        text = f"the API server does not accept {user}; log in again, or use another --context"
    elif code == HTTPStatus.FORBIDDEN:
        role = _role(what, verb)
        text = f"{user} may not {verb} {what}: {message}; request {role} in that namespace"
    elif code == HTTPStatus.NOT_FOUND and what in CRDS:
        text = (
            f"this cluster has no CRD {what}; install it with the chart "
            "(helm install … --set crds.install=true), or use another --context"
        )
    else:
        text = f"{what}: {message} ({code})"
    return PluginError(text, code)


def unreachable(server: str, why: str) -> PluginError:
    """Explain that the API server does not respond."""
    return PluginError(
        f"no response from {server}: {why}; is the cluster up, and is this the right --context? "
        "`kubectl cluster-info` queries the same server"
    )


def nobody(name: str, namespace: str, others: list[str]) -> PluginError:
    """Explain that no resource has this name, and list the others."""
    there = f"there are {', '.join(others)}" if others else "there is none"
    return PluginError(
        f"no {names.KIND} {name} in namespace {namespace}; {there}; "
        "use -n for another namespace; `kubectl specdecode status -A` lists all"
    )


def forward_error(lines: Sequence[str], pod: str, port: int) -> PluginError:
    """Explain why kubectl does not forward a port, from the last lines that it wrote."""
    text = " ".join(" ".join(lines).split())
    last = lines[-1].strip() if lines else "it wrote nothing"
    if "forbidden" in text.lower():
        return PluginError(
            f"{last}; request the role edit (or create on pods/portforward) in that namespace",
            HTTPStatus.FORBIDDEN,
        )
    if "unable to listen" in text.lower():
        why = "is in use" if "address already in use" in text else "may not be used"
        return PluginError(
            f"port {port} of 127.0.0.1 {why}; choose another one with --port, or leave --port out"
        )
    return PluginError(f"kubectl port-forward to pod {pod} has ended: {last}")


def _role(what: str, verb: str) -> str:
    if verb != "read":
        return "the ClusterRole …-trial-editor of the chart"
    # The built-in role view lacks pods/proxy, because a proxy allows more than reading.
    return "the role edit (or get on pods/proxy)" if "proxy" in what else "the role view"
