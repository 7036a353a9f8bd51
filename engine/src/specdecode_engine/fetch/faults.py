"""Download errors: a reason for programs and a message with a remedy."""

import errno

import httpx2
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RevisionNotFoundError

from specdecode_api.report import TerminationReason

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


class FetchError(Exception):
    """A download failed; the message names the model, the error and the remedy."""

    def __init__(self, reason: TerminationReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def explain(error: Exception, uri: str, has_token: bool) -> FetchError | None:
    """Convert an error to a `FetchError` for the model `uri`; None for an unexpected error."""
    # The order matters: a hub error is also an HTTP error and an OSError.
    if isinstance(error, HfHubHTTPError):
        return _answered(error, uri, has_token)
    if isinstance(error, httpx2.HTTPError):
        return unreachable(uri, f"{type(error).__name__}: {error}")
    if isinstance(error, OSError):
        return _failed(error, uri)
    return None


def unreachable(uri: str, why: str) -> FetchError:
    """Return the error for a hub that does not respond, or not as expected."""
    remedy = "check the network, proxies and download.endpoint; it is tried again"
    return FetchError(
        TerminationReason.HUB_UNREACHABLE, f"{uri}: the hub cannot be read ({why}); {remedy}"
    )


def out_of_space(uri: str, why: str) -> FetchError:
    """Return the error for a model that does not fit into the cache."""
    remedy = "enlarge the volume or remove models from it, or raise download.cacheSizeLimit"
    return FetchError(TerminationReason.OUT_OF_SPACE, f"{uri}: {why}; {remedy}")


def _answered(error: HfHubHTTPError, uri: str, has_token: bool) -> FetchError:
    status = error.response.status_code
    if isinstance(error, RevisionNotFoundError):
        remedy = "name a branch, a tag or a commit that it has, after the @"
        return FetchError(
            TerminationReason.REVISION_NOT_FOUND, f"{uri}: the model has no such revision; {remedy}"
        )
    if isinstance(error, GatedRepoError) and has_token:
        remedy = "accept its terms on the hub with the account that the token belongs to"
        return FetchError(
            TerminationReason.UNAUTHORIZED, f"{uri}: the model is gated (HTTP {status}); {remedy}"
        )
    if status in (401, 403):
        return FetchError(TerminationReason.UNAUTHORIZED, f"{uri}: {_refused(status, has_token)}")
    if status == 404:
        remedy = "check its spelling, and that the token may see it if it is private"
        return FetchError(
            TerminationReason.MODEL_NOT_FOUND, f"{uri}: the hub has no such model; {remedy}"
        )
    return unreachable(uri, f"HTTP {status}")


def _refused(status: int, has_token: bool) -> str:
    if has_token:
        return f"the hub refuses the token (HTTP {status}); use one that may read this model"
    return (
        f"private, gated or not there (HTTP {status}); put a token that may read it into a Secret "
        "and name that in download.tokenSecret"
    )


def _failed(error: OSError, uri: str) -> FetchError:
    if error.errno in _NO_SPACE:
        return out_of_space(uri, f"no space is left for it ({error})")
    if error.errno is None:
        # huggingface_hub raises this if the length of a response is not the announced one.
        return unreachable(uri, " ".join(str(error).split()))
    remedy = "the volume must be writable for user and group 65532"
    return FetchError(TerminationReason.CACHE_NOT_WRITABLE, f"{uri}: {error}; {remedy}")
