"""Reads single files of a wheel in an index, by HTTP ranges: the wheels are up to 340 MB."""

import io
import json
import os
import urllib.request
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

INDEX = os.environ.get("PEER_FLAGS_INDEX", "https://pypi.org/simple")
TIMEOUT_S = 120
CHUNK_BYTES = 1 << 20
ENDINGS = ("x86_64.whl", "-none-any.whl")


class NoWheel(Exception):
    """The index has no wheel of this version."""


@dataclass
class RangeReader(io.RawIOBase):
    """A file at a URL, of which only what is read is downloaded."""

    url: str
    size: int
    position: int = field(default=0, init=False)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        self.position = start + offset
        return self.position

    def readinto(self, buffer: Any) -> int:
        end = min(self.position + len(buffer), self.size)
        if end <= self.position:
            return 0
        headers = {"Range": f"bytes={self.position}-{end - 1}"}
        request = urllib.request.Request(self.url, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            if response.status != 206:
                raise NoWheel(f"{self.url} does not answer ranges: status {response.status}")
            found = response.read()
        buffer[: len(found)] = found
        self.position += len(found)
        return len(found)


def read_sources(project: str, version: str, prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return the Python files of a wheel whose paths begin with one of `prefixes`.

    Args:
        version: also the path of a wheel on disk.

    Raises:
        NoWheel: the index has none of this version.
    """
    file = Path(version)
    source = file.open("rb") if file.suffix == ".whl" else _open(project, version)
    with source, zipfile.ZipFile(source) as wheel:
        return {
            name: wheel.read(name).decode()
            for name in wheel.namelist()
            if name.startswith(prefixes) and name.endswith(".py")
        }


def _open(project: str, version: str) -> io.BufferedReader:
    headers = {"Accept": "application/vnd.pypi.simple.v1+json"}
    request = urllib.request.Request(f"{INDEX}/{project}/", headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        files = json.load(response)["files"]
    for each in files:
        name = each["filename"]
        if name.startswith(f"{project}-{version}-") and name.endswith(ENDINGS):
            return io.BufferedReader(RangeReader(each["url"], each["size"]), CHUNK_BYTES)
    raise NoWheel(f"{INDEX}/{project}/ has no wheel of {project} {version} for x86_64 or any")
