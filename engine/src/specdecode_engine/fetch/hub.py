"""All requests to the hub: the files of a revision and their contents."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.file_download import http_get
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils.tqdm import disable_progress_bars

from specdecode_api.model_uri import HubLocation
from specdecode_engine.fetch.faults import FetchError, explain, unreachable
from specdecode_engine.fetch.files import HubFile

ANSWER_TIMEOUT_S = 30.0


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
        """Resolve a revision to a commit and list its files.

        Raises:
            FetchError: with a reason and a remedy.
        """
        with self._explained(uri):
            found = self._api.model_info(
                location.repository,
                revision=location.revision,
                files_metadata=True,
                timeout=ANSWER_TIMEOUT_S,
            )
        if found.sha is None:
            raise unreachable(uri, "it names no commit")
        files = tuple(_file(each, uri) for each in found.siblings or ())
        return Snapshot(location.repository, found.sha, files)

    def stream(
        self, snapshot: Snapshot, file: HubFile, into: BinaryIO, offset: int, uri: str
    ) -> None:
        """Write a file from `offset` to `into`, positioned there; dropped connections are retried.

        Raises:
            FetchError: with a reason and a remedy.
        """
        # A compressed transfer could not be resumed.
        headers = {"Accept-Encoding": "identity"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        url = hf_hub_url(
            snapshot.repository, file.name, revision=snapshot.commit, endpoint=self._api.endpoint
        )
        with self._explained(uri):
            http_get(url, into, resume_size=offset, headers=headers, expected_size=file.bytes)

    @contextmanager
    def _explained(self, uri: str) -> Iterator[None]:
        try:
            yield
        except FetchError:
            raise
        except Exception as error:
            told = explain(error, uri, has_token=self._token is not None)
            if told is None:
                raise
            raise told from error


def _file(told: RepoSibling, uri: str) -> HubFile:
    if told.size is None:
        raise unreachable(uri, f"it reports no size for {told.rfilename}")
    sha256 = told.lfs.sha256 if told.lfs else None
    return HubFile(told.rfilename, told.size, sha256, told.blob_id)
