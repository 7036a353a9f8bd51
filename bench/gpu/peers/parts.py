"""The parts in which peers travel: what they are, whether all are there, and how they are joined.

`make bench-peers-pack` writes them. Needs only Python, as the GPU machine may have no more.
"""

import hashlib
import io
import json
import lzma
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PARTS = Path(__file__).resolve().parents[2] / "peers-parts"
MANIFEST = "parts.json"
PINNED = {"vllm": "0.26.0", "sglang": "0.5.17", "sglang-kernel": "0.4.5"}
"""The newest that run with torch 2.11 for CUDA 13."""
STUBS = Path(__file__).resolve().parent / "stubs"


class PartsError(Exception):
    """Parts of a peer are missing or damaged; the text names the part and the remedy."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a peer's archive."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class PackedPeer:
    """A peer's archive, cut into parts."""

    version: str
    parts: tuple[Part, ...]


def read_manifest(folder: Path) -> dict[str, PackedPeer]:
    """Read which parts there must be, by peer.

    Raises:
        PartsError: nothing was packed.
    """
    file = folder / MANIFEST
    if not file.exists():
        raise PartsError(f"{file} is missing; run `make bench-peers-pack` and bring its folder")
    return {
        name: PackedPeer(one["version"], tuple(Part(**part) for part in one["parts"]))
        for name, one in json.loads(file.read_text()).items()
    }


def write_manifest(folder: Path, peers: Mapping[str, PackedPeer]) -> None:
    """Write which parts there are."""
    document = {name: asdict(peer) for name, peer in peers.items()}
    (folder / MANIFEST).write_text(json.dumps(document, indent=1) + "\n")


def check_parts(folder: Path, peer: PackedPeer) -> Iterator[Path]:
    """Yield the files of a peer's parts in order.

    Raises:
        PartsError: one is missing, or its bytes are not those that were packed.
    """
    for part in peer.parts:
        file = folder / part.name
        if not file.exists():
            raise PartsError(f"{file} is missing; bring all parts of `make bench-peers-pack`")
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        if digest != part.sha256:
            raise PartsError(
                f"{file}: SHA-256 is {digest}, packed was {part.sha256}; bring the part again"
            )
        yield file


def unpack_peer(folder: Path, name: str, work: Path) -> list[Path]:
    """Join and unpack a peer; return the folders of its PYTHONPATH.

    Args:
        work: gets a folder with the peer's name; what is there already is used.

    Raises:
        PartsError: a part is missing or damaged, or the peer is of another version.
    """
    peer, into = read_manifest(folder).get(name), work / name
    if peer is None:
        raise PartsError(f"{folder / MANIFEST} has no {name}; run `make bench-peers-pack`")
    if peer.version != PINNED[name]:
        raise PartsError(
            f"{folder / MANIFEST}: {name} is {peer.version}, pinned is {PINNED[name]}; "
            "run `make bench-peers-pack`"
        )
    if not into.exists():
        half = into.with_name(f"{name}.unpacking")
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir(parents=True)
        _extract([*check_parts(folder, peer)], half)
        half.rename(into)
    return [STUBS, into]


def _extract(files: Sequence[Path], into: Path) -> None:
    with (
        io.BufferedReader(_Joined(files)) as joined,
        lzma.open(joined) as stream,
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        archive.extractall(into, filter="data")


class _Joined(io.RawIOBase):
    """Several files, read as one."""

    def __init__(self, files: Sequence[Path]) -> None:
        super().__init__()
        self._waiting = [*reversed(files)]
        self._file: io.BufferedReader | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        while True:
            if self._file is None:
                if not self._waiting:
                    return 0
                self._file = self._waiting.pop().open("rb")
            if count := self._file.readinto(buffer):
                return count
            self._file.close()
            self._file = None
