"""Writes a folder as a compressed archive in parts, and checks that each part can travel."""

import hashlib
import io
import lzma
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bench.gpu.carry import MOST_BYTES
from bench.gpu.peers.pack.errors import PackError
from bench.gpu.peers.parts import PackedPeer, Part

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PART_MIB = 36
PRESET = 6


def write_parts(folder: Path, name: str, version: str, into: Path, part_bytes: int) -> PackedPeer:
    """Write all files of a folder into parts `NAME.tar.xz.NN` of at most `part_bytes`."""
    for old in into.glob(f"{name}.tar.xz.*"):
        old.unlink()
    parts = _PartsWriter(into, f"{name}.tar.xz", part_bytes)
    with (
        io.BufferedWriter(parts) as buffered,
        lzma.LZMAFile(buffered, "wb", preset=PRESET) as packed,
        tarfile.open(fileobj=packed, mode="w|") as archive,
    ):
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.add(file, str(file.relative_to(folder)), filter=_anonymous)
    return PackedPeer(version, tuple(parts.finish()))


def check_travel(peers: Mapping[str, PackedPeer], tree_bytes: int) -> None:
    """Check that the largest part and the files of the checkout travel together.

    Raises:
        PackError: they are too many bytes.
    """
    largest = max(
        (part for peer in peers.values() for part in peer.parts), key=lambda one: one.size
    )
    if largest.size + tree_bytes > MOST_BYTES:
        raise PackError(
            f"{largest.name} has {_mib(largest.size)} and the checkout {_mib(tree_bytes)}, "
            f"together more than {_mib(MOST_BYTES)}; make smaller parts with --part-mib"
        )


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out owner and time, so that the same files give the same parts."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


class _PartsWriter(io.RawIOBase):
    """A stream that is cut into files."""

    def __init__(self, folder: Path, name: str, part_bytes: int) -> None:
        super().__init__()
        self._folder, self._name, self._part_bytes = folder, name, part_bytes
        self._buffer, self._parts = bytearray(), list[Part]()

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer", /) -> int:
        self._buffer += data
        while len(self._buffer) >= self._part_bytes:
            self._write_part(self._part_bytes)
        return memoryview(data).nbytes

    def finish(self) -> Iterator[Part]:
        """Write what is left; yield all parts."""
        if self._buffer:
            self._write_part(len(self._buffer))
        yield from self._parts

    def _write_part(self, size: int) -> None:
        content = bytes(self._buffer[:size])
        del self._buffer[:size]
        name = f"{self._name}.{len(self._parts):02d}"
        (self._folder / name).write_bytes(content)
        self._parts.append(Part(name, size, hashlib.sha256(content).hexdigest()))
