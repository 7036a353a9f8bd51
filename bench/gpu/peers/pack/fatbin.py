"""CUDA fat binaries in shared objects: which images they have, and zeros in place of some.

A container is a header and entries, each with a header of its own. Only payloads become zeros:
sizes, offsets and headers stay, so the file loads as before, and compression removes the zeros.
"""

import re
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import zstandard

from bench.gpu.peers.pack.errors import PackError
from bench.gpu.peers.pack.recipes import Wanted

SECTION = b".nv_fatbin"
CONTAINER = 0xBA55ED50
MACHINE_CODE = 2  # 1 is PTX
CAPABILITY = 90
LZ4, ZSTD = 0x2000, 0x8000
MAX_ENTRY_HEADER = 4096


@dataclass(frozen=True, slots=True)
class Image:
    """One entry: its kind and compute capability, and where its payload is in the file."""

    kind: int
    capability: int
    flags: int
    start: int
    size: int
    packed: int  # bytes of the payload that are compressed data


@dataclass(frozen=True, slots=True)
class CutSizes:
    """Bytes of payloads that stayed, and that became zeros."""

    kept: int
    zeroed: int


def cut_images(file: Path, wanted: Wanted) -> CutSizes:
    """Replace the payloads of a shared object by zeros, but for wanted ones for 9.0.

    Raises:
        PackError: the file is not of the expected layout, or a program is missing.
    """
    data = bytearray(file.read_bytes())
    kept = zeroed = 0
    for image in images_of(data, file.name):
        if _is_wanted(data, image, wanted, file.name):
            kept += image.size
        else:
            data[image.start : image.start + image.size] = bytes(image.size)
            zeroed += image.size
    file.write_bytes(data)
    return CutSizes(kept, zeroed)


def images_of(data: bytes | bytearray, name: str) -> Iterator[Image]:
    """Yield the images of a shared object.

    Raises:
        PackError: an entry has no valid header.
    """
    at, end = _section(data, name)
    while at + 16 <= end:
        magic, _, header, length = struct.unpack_from("<IHHQ", data, at)
        if magic != CONTAINER:
            at += 8  # padding between containers
            continue
        inner, stop = at + header, at + header + length
        while inner + 64 <= stop:
            kind, _, head, payload, packed = struct.unpack_from("<HHIQI", data, inner)
            capability, _, _, flags = struct.unpack_from("<IIIQ", data, inner + 28)
            if not 64 <= head <= MAX_ENTRY_HEADER:
                raise PackError(f"{name}: no entry of a fat binary at byte {inner}; look at it")
            yield Image(kind, capability, flags, inner + head, payload, packed)
            inner += head + payload
        at = (stop + 7) & ~7


def _is_wanted(data: bytearray, image: Image, wanted: Wanted, name: str) -> bool:
    if (image.kind, image.capability) != (MACHINE_CODE, CAPABILITY):
        return False
    payload = bytes(data[image.start : image.start + image.size])
    if image.flags & LZ4:
        raise PackError(f"{name}: machine code is compressed with LZ4, which is not read; keep all")
    if image.flags & ZSTD:
        payload = _decompressed(payload[: image.packed or image.size], name)
    return wanted(kernels_of(payload))


def _decompressed(payload: bytes, name: str) -> bytes:
    try:
        return zstandard.ZstdDecompressor().decompressobj().decompress(payload)
    except zstandard.ZstdError as error:
        raise PackError(f"{name}: machine code does not decompress: {error}; look at it") from None


def kernels_of(machine_code: bytes) -> list[str]:
    """Return the demangled names of the kernels: those of sections `.text.NAME`."""
    found = {one.decode() for one in re.findall(rb"\.text\.([\w$.]+)\0", machine_code)}
    return run_program(["c++filt"], "\n".join(sorted(found)).encode()).decode().splitlines()


def run_program(command: list[str], data: bytes = b"") -> bytes:
    """Run a program on bytes and return what it prints.

    Raises:
        PackError: it is missing or fails.
    """
    try:
        return subprocess.run(command, input=data, capture_output=True, check=True).stdout
    except FileNotFoundError:
        raise PackError(f"{command[0]} is missing; install binutils") from None
    except subprocess.CalledProcessError as error:
        raise PackError(f"{' '.join(command)}: {error.stderr.decode().strip()}") from None


def _section(data: bytes | bytearray, name: str) -> tuple[int, int]:
    """Return the bytes of the section of fat binaries in a 64-bit ELF file."""
    if data[:5] != b"\x7fELF\x02":
        raise PackError(f"{name} is not a 64-bit ELF file; look at its wheel")
    (headers,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    sections = [
        struct.unpack_from("<IIQQQQ", data, headers + number * size) for number in range(count)
    ]
    strings = sections[names][4]
    for text, _, _, _, start, length in sections:
        at = strings + text
        if data[at : data.index(b"\0", at)] == SECTION:
            return start, start + length
    raise PackError(f"{name} has no section {SECTION.decode()}; look at its wheel")
