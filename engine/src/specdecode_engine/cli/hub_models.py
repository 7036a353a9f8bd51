"""Models of the Hub that an engine is started with: downloaded, and replaced by their folders."""

import logging
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants, get_token

from specdecode_api.boot import EngineBoot
from specdecode_api.model_uri import HubLocation, parse_uri
from specdecode_api.report import ModelRole
from specdecode_engine.cli.model_names import HUB, ModelRefused, hub_name, hub_uri
from specdecode_engine.fetch.download import Download
from specdecode_engine.fetch.hub import FetchError, Hub
from specdecode_engine.fetch.interruption import ended_by_signals
from specdecode_engine.fetch.progress import Counts
from specdecode_engine.fetch.progress_bar import progress_shown

FOLDER = Path(constants.HF_HOME) / "specdecode"
"""Where downloads are kept."""


@dataclass(frozen=True, slots=True)
class DownloadedModels:
    """The folder of each model, by its name on the command line."""

    folders: Mapping[str, Path]

    def in_place(self, boot: EngineBoot) -> EngineBoot:
        """Return the boot file with folders for the names; the target's is its name in the API."""
        model, speculation = boot.model, boot.speculation
        if (folder := self.folders.get(model.path)) is not None:
            named = model.served_name or hub_name(model.path)
            model = model.model_copy(update={"path": str(folder), "served_name": named})
        if (folder := self.folders.get(speculation.draft_path or "")) is not None:
            speculation = speculation.model_copy(update={"draft_path": str(folder)})
        return boot.model_copy(update={"model": model, "speculation": speculation})


def download_models(names: Mapping[ModelRole, str], endpoint: str | None) -> DownloadedModels:
    """Download models into the cache, the draft first: it is smaller, and may be refused.

    Args:
        names: as on the command line, of the Hub.
        endpoint: URL of a mirror.

    Raises:
        ModelRefused: a model cannot be read, or does not fit on the disk.
    """
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    uris = {role: hub_uri(name) or name for role, name in names.items()}
    counts, hub = Counts(uris), Hub(endpoint, get_token())
    downloads = {
        names[role]: Download(role, uri, _location(uri), FOLDER, hub, counts)
        for role, uri in reversed(uris.items())
    }
    with ended_by_signals((signal.SIGINT, signal.SIGTERM), lambda: _interrupted(counts)):
        try:
            for download in downloads.values():
                download.check()
            with progress_shown(counts):
                return DownloadedModels({name: one.run().path for name, one in downloads.items()})
        except FetchError as error:
            raise ModelRefused(_message(error, names), error.reason) from None


def _location(uri: str) -> HubLocation:
    location = parse_uri(uri)
    assert isinstance(location, HubLocation), "the names are those of the Hub"
    return location


def _message(error: FetchError, names: Mapping[ModelRole, str]) -> str:
    """Add that there is no such folder, which a name without a scheme may stand for."""
    for name in names.values():
        if error.by_hand.startswith(f"{HUB}{name}: "):
            return f"{name}: no such folder; {error.by_hand}"
    return error.by_hand


def _interrupted(counts: Counts) -> str:
    done = sum(each.bytes_done for each in counts.progress().models)
    kept = f"{done} downloaded bytes stay in {FOLDER}"
    return f"specdecode-engine: stopped; {kept}, and the next start continues there"
