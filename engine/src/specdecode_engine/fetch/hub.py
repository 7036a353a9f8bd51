"""The Hugging Face Hub: the files of a revision, their contents, and what its errors mean."""

import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import BinaryIO

import httpx2
from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils._http import get_session, hf_raise_for_status
from huggingface_hub.utils.tqdm import disable_progress_bars

from specdecode_api.model_uri import HubLocation
from specdecode_api.report import TerminationReason

ANSWER_TIMEOUT_S = 30.0
PARTIAL_CONTENT = 206

_SUFFIXES = (".safetensors", ".json", ".jinja")
_PICKLES = re.compile(r"pytorch_model(-[0-9-]+of-[0-9]+)?\.bin")
_CONFIG = "config.json"
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


class FetchError(Exception):
    """A download failed; the message names the model, the error and the remedy in a resource.

    `by_hand` is the message for an engine that is started without one.
    """

    def __init__(
        self, reason: TerminationReason, uri: str, message: str, by_hand: str | None = None
    ) -> None:
        super().__init__(f"{uri}: {message}")
        self.reason = reason
        self.by_hand = f"{uri}: {message if by_hand is None else by_hand}"


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository. Large files have a SHA-256, others a git blob id."""

    name: str
    bytes: int
    sha256: str | None
    git_id: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A repository at one commit."""

    repository: str
    commit: str
    files: tuple[HubFile, ...]


class Hub:
    """The Hugging Face Hub, or a mirror with the same API.

    Args:
        endpoint: URL; if None, HF_ENDPOINT or the public hub.
        token: access token; if None, requests are anonymous and no stored token is used.
    """

    def __init__(self, endpoint: str | None, token: str | None) -> None:
        self._token = token
        self._api = HfApi(endpoint=endpoint, token=token or False)
        disable_progress_bars()

    def snapshot(self, location: HubLocation, uri: str) -> Snapshot:
        """Resolve a revision to a commit and list its files; raises `FetchError`."""
        repository, revision = location.repository, location.revision
        with explained(uri, self._token is not None):
            found = self._api.model_info(
                repository, revision=revision, files_metadata=True, timeout=ANSWER_TIMEOUT_S
            )
        if found.sha is None:
            raise unreachable(uri, "it names no commit")
        files = tuple(_file(each, uri) for each in found.siblings or ())
        return Snapshot(repository, found.sha, files)

    def stream(
        self, snapshot: Snapshot, file: HubFile, into: BinaryIO, offset: int, uri: str
    ) -> None:
        """Write a file from `offset` to `into`, positioned there; raises `FetchError`.

        Dropped connections are retried.
        """
        # A compressed transfer could not be resumed.
        headers = {"Accept-Encoding": "identity"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        url = self._url(snapshot, file)
        with explained(uri, self._token is not None):
            http_get(url, into, resume_size=offset, headers=headers, expected_size=file.bytes)

    def read_start(self, snapshot: Snapshot, file: HubFile, length: int, uri: str) -> bytes:
        """Return the first `length` bytes of a file, or all of a shorter one; raises `FetchError`.

        A mirror that ignores ranges is refused: it would send the whole file.
        """
        headers = {"Accept-Encoding": "identity", "Range": f"bytes=0-{length - 1}"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        with (
            explained(uri, self._token is not None),
            get_session().stream(
                "GET",
                self._url(snapshot, file),
                headers=headers,
                timeout=ANSWER_TIMEOUT_S,
                follow_redirects=True,
            ) as response,
        ):
            hf_raise_for_status(response)
            if response.status_code != PARTIAL_CONTENT and file.bytes > length:
                raise unreachable(uri, f"it sends {file.name} whole, not the range asked for")
            return response.read()[:length]

    def _url(self, snapshot: Snapshot, file: HubFile) -> str:
        return hf_hub_url(
            snapshot.repository, file.name, revision=snapshot.commit, endpoint=self._api.endpoint
        )


def needed(files: Iterable[HubFile], uri: str) -> tuple[HubFile, ...]:
    """Choose the files to download, ordered by name.

    Folders are left out because they contain other formats; so are consolidated weights, which
    some publishers provide in addition to the same weights in shards. Pickles are chosen where
    there are no safetensors. Raises `FetchError` if this is not a checkpoint in Hugging Face
    format.
    """
    found = tuple(files)
    chosen = [file for file in found if _is_needed(file.name)]
    if not any(file.name.endswith(".safetensors") for file in chosen):
        chosen += [file for file in found if _PICKLES.fullmatch(file.name)]
    chosen.sort(key=attrgetter("name"))
    names = {file.name for file in chosen}
    invalid = TerminationReason.CHECKPOINT_INVALID
    if _CONFIG not in names:
        raise FetchError(invalid, uri, f"has no {_CONFIG}; name a model in Hugging Face format")
    if not any(name.endswith((".safetensors", ".bin")) for name in names):
        suffixes = (".bin", ".gguf", ".pt", ".pth")
        others = [file.name for file in found if file.name.endswith(suffixes)]
        held = f"only {', '.join(sorted(others)[:3])}" if others else "no weights at all"
        remedy = "name a revision or a model that has them"
        raise FetchError(invalid, uri, f"has no safetensors or pytorch_model.bin, {held}; {remedy}")
    return tuple(chosen)


def _is_needed(name: str) -> bool:
    # Names that begin with a dot are reserved for this cache.
    is_left_out = "/" in name or name.startswith((".", "consolidated"))
    return name.endswith(_SUFFIXES) and not is_left_out


def _file(sibling: RepoSibling, uri: str) -> HubFile:
    if sibling.size is None:
        raise unreachable(uri, f"it reports no size for {sibling.rfilename}")
    sha256 = sibling.lfs.sha256 if sibling.lfs else None
    return HubFile(sibling.rfilename, sibling.size, sha256, sibling.blob_id)


@contextmanager
def explained(uri: str, has_token: bool) -> Iterator[None]:
    """Convert errors of the hub, the network and the disk to `FetchError`; others pass."""
    try:
        yield
    except HfHubHTTPError as error:  # is also an HTTPError and an OSError
        raise _answered(error, uri, has_token) from error
    except httpx2.HTTPError as error:
        raise unreachable(uri, f"{type(error).__name__}: {error}") from error
    except OSError as error:
        raise _failed(error, uri) from error
    except HFValidationError as error:
        text = f"the hub has no such names ({error}); check its spelling"
        raise FetchError(TerminationReason.MODEL_NOT_FOUND, uri, text) from error


def unreachable(uri: str, why: str) -> FetchError:
    """Return the error for a hub that does not respond, or not as expected."""
    text = f"the hub cannot be read ({why})"
    remedy = "check the network, proxies and download.endpoint; it is tried again"
    by_hand = "check the network, proxies and HF_ENDPOINT, or give the folder of a model"
    reason = TerminationReason.HUB_UNREACHABLE
    return FetchError(reason, uri, f"{text}; {remedy}", f"{text}; {by_hand}")


def out_of_space(uri: str, why: str) -> FetchError:
    """Return the error for a model that does not fit into the cache."""
    remedy = "enlarge the volume or remove models from it, or raise download.cacheSizeLimit"
    by_hand = "free space there, or name a folder on another disk with HF_HOME"
    return FetchError(TerminationReason.OUT_OF_SPACE, uri, f"{why}; {remedy}", f"{why}; {by_hand}")


def _answered(error: HfHubHTTPError, uri: str, has_token: bool) -> FetchError:
    reason, status = TerminationReason.UNAUTHORIZED, error.response.status_code
    by_hand = None
    if isinstance(error, RevisionNotFoundError):
        reason, text = TerminationReason.REVISION_NOT_FOUND, "the model has no such revision"
        remedy = "name a branch, a tag or a commit that it has, after the @"
    elif isinstance(error, GatedRepoError) and has_token:
        text = f"the model is gated (HTTP {status})"
        remedy = "accept its terms on the hub with the account that the token belongs to"
    elif status in (401, 403) and has_token:
        text = f"the hub refuses the token (HTTP {status})"
        remedy = "use one that may read this model"
    elif status in (401, 403):
        text = f"private, gated or not there (HTTP {status})"
        remedy = "put a token that may read it into a Secret and name that in download.tokenSecret"
        by_hand = "set HF_TOKEN to a token that may read it, or correct the name"
    elif status == 404:
        reason, text = TerminationReason.MODEL_NOT_FOUND, "the hub has no such model"
        remedy = "check its spelling, and that the token may see it if it is private"
    else:
        return unreachable(uri, f"HTTP {status}")
    return FetchError(reason, uri, f"{text}; {remedy}", f"{text}; {by_hand or remedy}")


def _failed(error: OSError, uri: str) -> FetchError:
    if error.errno in _NO_SPACE:
        return out_of_space(uri, f"no space is left for it ({error})")
    if error.errno is None:
        # huggingface_hub raises this if the length of a response is not the announced one.
        return unreachable(uri, " ".join(str(error).split()))
    remedy = "the volume must be writable for user and group 65532"
    by_hand = "name a folder that this user may write with HF_HOME"
    reason = TerminationReason.CACHE_NOT_WRITABLE
    return FetchError(reason, uri, f"{error}; {remedy}", f"{error}; {by_hand}")
