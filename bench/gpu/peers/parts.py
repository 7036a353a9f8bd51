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
UNPACKED = "unpacked-parts.json"
"""In the folder of an unpacked peer: the SHA-256 of its parts."""
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
        PartsError: nothing was packed, or the file is malformed.
    """
    file = folder / MANIFEST
    if not file.exists():
        raise PartsError(f"{file} is missing; run `make bench-peers-pack` and bring its folder")
    try:
        return {
            name: PackedPeer(one["version"], tuple(Part(**part) for part in one["parts"]))
            for name, one in json.loads(file.read_text()).items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PartsError(
            f"{file}: not a list of parts ({type(error).__name__}: {error}); "
            "run `make bench-peers-pack`"
        ) from error


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
        work: gets a folder with the peer's name; what these parts gave before is used.

    Raises:
        PartsError: a part is missing or damaged, the peer is of another version, or it cannot be
            unpacked.
    """
    peer, into = _pinned_peer(folder, name), work / name
    try:
        if _unpacked_digests(into) != _digests(peer):
            _unpack([*check_parts(folder, peer)], into, _digests(peer))
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as error:
        raise PartsError(
            f"{name} was not unpacked into {into} ({type(error).__name__}: {error}); bring its "
            "parts again, or name another folder with --work"
        ) from error
    return [STUBS, into]


def _pinned_peer(folder: Path, name: str) -> PackedPeer:
    peer = read_manifest(folder).get(name)
    if peer is None:
        raise PartsError(f"{folder / MANIFEST} has no {name}; run `make bench-peers-pack`")
    if peer.version != PINNED[name]:
        raise PartsError(
            f"{folder / MANIFEST}: {name} is {peer.version}, pinned is {PINNED[name]}; "
            "run `make bench-peers-pack`"
        )
    return peer


def _digests(peer: PackedPeer) -> list[str]:
    return [part.sha256 for part in peer.parts]


def _unpacked_digests(into: Path) -> list[str] | None:
    """Return the digests of the parts that a folder was unpacked from; None if there is none.

    Raises:
        PartsError: something else is there.
    """
    if not into.exists():
        return None
    try:
        return [*map(str, json.loads((into / UNPACKED).read_text()))]
    except (OSError, ValueError, TypeError) as error:
        raise PartsError(
            f"{into} was not unpacked by this program; remove it, or name another folder with "
            "--work"
        ) from error


def _unpack(files: Sequence[Path], into: Path, digests: Sequence[str]) -> None:
    half = into.with_name(f"{into.name}.unpacking")
    shutil.rmtree(half, ignore_errors=True)
    try:
        half.mkdir(parents=True)
        _extract(files, half)
        (half / UNPACKED).write_text(json.dumps(digests))
        if into.exists():
            shutil.rmtree(into)
        half.rename(into)
    finally:
        shutil.rmtree(half, ignore_errors=True)


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
