"""Reads what describes a model of the hub, without its weights: its texts, headers of safetensors.

The texts are configs, tokenizer and chat template.

A safetensors file begins with the length of its header, 8 bytes little-endian, and the header. The
two, written to a sparse file of the whole length, open like the file itself.
"""

from pathlib import Path

from specdecode_api.model_uri import HubLocation
from specdecode_api.report import TerminationReason
from specdecode_engine.fetch.hub import FetchError, Hub, HubFile, Snapshot, needed

FIRST_BYTES = 100_000
"""Holds the header of most files."""

LONGEST_HEADER = 100_000_000
"""As in the safetensors library."""


def fetch_headers(hub: Hub, uri: str, location: HubLocation, folder: Path) -> None:
    """Write texts, and every safetensors file with a hole for its weights, to `folder`.

    Raises:
        FetchError: the hub cannot be read, or the repository is not a checkpoint.
    """
    snapshot = hub.snapshot(location, uri)
    for file in needed(snapshot.files, uri):
        if file.name.endswith(".safetensors"):
            _write_header(hub, snapshot, file, uri, folder)
        elif not file.name.endswith(".bin"):
            content = hub.read_start(snapshot, file, max(file.bytes, 1), uri)
            (folder / file.name).write_bytes(content)


def _write_header(hub: Hub, snapshot: Snapshot, file: HubFile, uri: str, folder: Path) -> None:
    content = hub.read_start(snapshot, file, FIRST_BYTES, uri)
    end = 8 + int.from_bytes(content[:8], "little")
    if len(content) < 8 or end > min(file.bytes, LONGEST_HEADER):
        invalid = TerminationReason.CHECKPOINT_INVALID
        raise FetchError(
            invalid, uri, f"{file.name} is not a safetensors file; name another revision"
        )
    if end > len(content):
        content = hub.read_start(snapshot, file, end, uri)
    with (folder / file.name).open("wb") as opened:
        opened.write(content[:end])
        opened.truncate(file.bytes)
