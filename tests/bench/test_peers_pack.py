"""Packing peers: pinned wheels, machine code that is cut, parts that are joined again."""

import base64
import hashlib
import lzma
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from zipfile import ZipFile

import pytest
import zstandard

from bench.gpu.carry import MOST_BYTES
from bench.gpu.peers.pack.archive import PART_MIB, check_travel, write_parts
from bench.gpu.peers.pack.errors import PackError
from bench.gpu.peers.pack.fatbin import CutSizes, cut_images, kernels_of
from bench.gpu.peers.pack.recipes import (
    RECIPES,
    Recipe,
    attention_of_the_run,
    every_kernel,
)
from bench.gpu.peers.pack.stage import cut, lock_of, stage
from bench.gpu.peers.parts import (
    MANIFEST,
    PINNED,
    STUBS,
    PackedPeer,
    Part,
    PartsError,
    unpack_peer,
    write_manifest,
)

ROOT = Path(__file__).resolve().parents[2]
PART_BYTES = 500
WHEEL = "demo-1.0-py3-none-any.whl"


def write_wheel(folder: Path, content: str = "value = 1\n") -> Path:
    """Write a small valid wheel."""
    about = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {
        "demo/__init__.py": content,
        "demo/left_out/big.py": "",
        "demo-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
        "demo-1.0.dist-info/WHEEL": about,
    }
    record = "".join(f"{name},{record_hash(text)},{len(text)}\n" for name, text in files.items())
    folder.mkdir(exist_ok=True)
    with ZipFile(folder / WHEEL, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr("demo-1.0.dist-info/RECORD", f"{record}demo-1.0.dist-info/RECORD,,\n")
    return folder / WHEEL


def record_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).decode().rstrip("=")


def write_lock(folder: Path, wheel: Path) -> Path:
    lock = folder / "demo.lock"
    lock.write_text(f"demo==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    return lock


DEMO = Recipe("demo", ("demo/left_out",), {})


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that replaces the package index."""
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "index"


def test_pinned_wheels_are_installed_and_cut(index: Path, tmp_path: Path) -> None:
    wheel = write_wheel(index)
    lock = write_lock(tmp_path, wheel)
    stage(DEMO, tmp_path / "stage", lock)
    assert (tmp_path / "stage/demo/left_out/big.py").exists()
    cut(DEMO, tmp_path / "stage")
    assert (tmp_path / "stage/demo/__init__.py").read_text() == "value = 1\n"
    assert not (tmp_path / "stage/demo/left_out").exists()


def test_a_changed_byte_in_a_wheel_is_refused_by_name(index: Path, tmp_path: Path) -> None:
    wheel = write_wheel(index)
    lock = write_lock(tmp_path, wheel)
    expected = hashlib.sha256(wheel.read_bytes()).hexdigest()
    write_wheel(index, "value = 2\n")
    with pytest.raises(PackError, match=r"(?s)^demo: .*Hash mismatch for `demo==1\.0`") as raised:
        stage(DEMO, tmp_path / "stage", lock)
    assert expected in str(raised.value)
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in str(raised.value)


def test_a_wheel_that_is_missing_is_refused_by_name(index: Path, tmp_path: Path) -> None:
    lock = write_lock(tmp_path, write_wheel(index))
    (index / WHEEL).unlink()
    wanted = r"(?s)^demo: .*(demo was not found|no version of demo==1\.0)"
    with pytest.raises(PackError, match=wanted):
        stage(DEMO, tmp_path / "stage", lock)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_every_wheel_is_pinned_with_its_hash(recipe: Recipe) -> None:
    lines = [one for one in lock_of(recipe.name).read_text().splitlines() if one[0] != "#"]
    pins = [re.fullmatch(r"(\S+)==(\S+) --hash=sha256:\w{64}", one) for one in lines]
    assert all(pins)
    versions = {pin[1]: pin[2] for pin in pins if pin}
    own = {name: version for name, version in PINNED.items() if name.startswith(recipe.name)}
    assert own.items() <= versions.items()


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe("demo", (), {"demo/_C.so": every_kernel}),
        Recipe("demo", ("demo/_C.so",), {}),
        Recipe("demo", (), {}, ("demo/_C.so",)),
    ],
)
def test_a_file_that_a_recipe_names_must_be_there(tmp_path: Path, recipe: Recipe) -> None:
    with pytest.raises(PackError, match=r"demo: demo/_C\.so is not in its wheels"):
        cut(recipe, tmp_path)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A folder with a peer in several parts, named like one that is pinned."""
    source = tmp_path / "source"
    (source / "vllm").mkdir(parents=True)
    for number in range(20):
        digits = hashlib.sha512(str(number).encode()).hexdigest()
        (source / "vllm" / f"module_{number}.py").write_text(f"value = '{digits}'\n")
    folder = tmp_path / "parts"
    folder.mkdir()
    peer = write_parts(source, "vllm", PINNED["vllm"], folder, PART_BYTES)
    assert len(peer.parts) > 2
    write_manifest(folder, {"vllm": peer})
    return folder


def test_parts_are_joined_to_the_files_that_were_packed(packed: Path, tmp_path: Path) -> None:
    stubs, into = unpack_peer(packed, "vllm", tmp_path / "work")
    assert stubs == STUBS
    files = {str(one.relative_to(into)): one.read_text() for one in into.rglob("*.py")}
    source = tmp_path / "source"
    assert files == {str(one.relative_to(source)): one.read_text() for one in source.rglob("*.py")}
    (packed / MANIFEST).unlink()
    with pytest.raises(PartsError, match="run `make bench-peers-pack`"):
        unpack_peer(packed, "vllm", tmp_path / "work")


def test_the_same_files_give_the_same_parts(packed: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_parts(tmp_path / "source", "vllm", PINNED["vllm"], other, PART_BYTES)
    contents = [
        {one.name: one.read_bytes() for one in folder.glob("*.xz.*")} for folder in (packed, other)
    ]
    assert contents[0] == contents[1]


def test_a_missing_part_is_refused_by_name(packed: Path, tmp_path: Path) -> None:
    (packed / "vllm.tar.xz.01").unlink()
    with pytest.raises(PartsError, match=r"vllm\.tar\.xz\.01 is missing; bring all parts"):
        unpack_peer(packed, "vllm", tmp_path / "work")
    assert not (tmp_path / "work/vllm").exists()


def test_a_changed_byte_in_a_part_is_refused_by_name(packed: Path, tmp_path: Path) -> None:
    file = packed / "vllm.tar.xz.01"
    content = bytearray(file.read_bytes())
    content[17] ^= 1
    file.write_bytes(content)
    with pytest.raises(PartsError, match=r"vllm\.tar\.xz\.01: SHA-256 is \w{64}, packed was"):
        unpack_peer(packed, "vllm", tmp_path / "work")


def test_a_peer_of_another_version_is_refused(packed: Path, tmp_path: Path) -> None:
    write_manifest(packed, {"vllm": PackedPeer("0.25.0", ())})
    with pytest.raises(PartsError, match=r"vllm is 0\.25\.0, pinned is 0\.26\.0"):
        unpack_peer(packed, "vllm", tmp_path / "work")
    with pytest.raises(PartsError, match="has no sglang"):
        unpack_peer(packed, "sglang", tmp_path / "work")


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"vllm": 3}', '{"vllm": {"version": "0.26.0", "parts": [{"size": 1}]}}']
)
def test_a_malformed_list_of_parts_is_refused(packed: Path, tmp_path: Path, text: str) -> None:
    (packed / MANIFEST).write_text(text)
    with pytest.raises(PartsError, match=r"parts\.json: not a list of parts \(\w+: .*run `make"):
        unpack_peer(packed, "vllm", tmp_path / "work")


@pytest.mark.parametrize("content", [b"no archive", lzma.compress(b"no archive" * 100)])
def test_parts_that_are_no_archive_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "one").write_bytes(content)
    part = Part("one", len(content), hashlib.sha256(content).hexdigest())
    write_manifest(tmp_path, {"vllm": PackedPeer(PINNED["vllm"], (part,))})
    with pytest.raises(PartsError, match=r"vllm was not unpacked into .*\(\w+: .*bring its parts"):
        unpack_peer(tmp_path, "vllm", tmp_path / "work")
    assert not [*(tmp_path / "work").iterdir()]


def test_a_folder_of_other_parts_is_unpacked_again(packed: Path, tmp_path: Path) -> None:
    _, into = unpack_peer(packed, "vllm", tmp_path / "work")
    (into / "kept").touch()
    unpack_peer(packed, "vllm", tmp_path / "work")
    assert (into / "kept").exists()
    (tmp_path / "source" / "vllm" / "module_0.py").write_text("value = 0\n")
    peer = write_parts(tmp_path / "source", "vllm", PINNED["vllm"], packed, PART_BYTES)
    write_manifest(packed, {"vllm": peer})
    unpack_peer(packed, "vllm", tmp_path / "work")
    assert (into / "vllm" / "module_0.py").read_text() == "value = 0\n"
    assert not (into / "kept").exists()


def test_a_folder_of_someone_else_is_not_replaced(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "work" / "vllm").mkdir(parents=True)
    with pytest.raises(PartsError, match=r"work/vllm was not unpacked by this program; .*--work"):
        unpack_peer(packed, "vllm", tmp_path / "work")


@pytest.mark.parametrize("size", ["0", "-1", str(PART_MIB + 1)])
def test_a_part_of_no_size_is_refused(size: str) -> None:
    words = [sys.executable, "-m", "bench.gpu.peers.pack", "--part-mib", size]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--part-mib is {size}; it must be 1 to {PART_MIB}" in done.stderr


def test_parts_of_a_malformed_list_are_not_kept(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text("[]")
    words = ["-m", "bench.gpu.peers.pack", "--folder", str(tmp_path), "--only", "vllm"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{tmp_path / MANIFEST}: not a list of parts")


def test_a_part_that_cannot_travel_is_an_error_with_both_sizes() -> None:
    parts = (Part("vllm.tar.xz.00", PART_MIB << 20, ""), Part("vllm.tar.xz.01", 5, ""))
    peers = {"vllm": PackedPeer("0.26.0", parts)}
    check_travel(peers, MOST_BYTES - (PART_MIB << 20))
    with pytest.raises(PackError) as raised:
        check_travel(peers, 30 << 20)
    assert str(raised.value) == (
        "vllm.tar.xz.00 has 36.0 MiB and the checkout 30.0 MiB, together more than 64.0 MiB; "
        "make smaller parts with --part-mib"
    )


def image(kind: int, capability: int, payload: bytes, flags: int = 0x11) -> bytes:
    """Return one entry of a fat binary."""
    head = struct.pack("<HHIQI", kind, 0, 64, len(payload), 0)
    head += bytes(28 - len(head)) + struct.pack("<IIIQ", capability, 0, 0, flags)
    return head + bytes(64 - len(head)) + payload


def write_shared_object(file: Path, images: Sequence[bytes]) -> None:
    """Write an ELF file with a section of fat binaries, and nothing else."""
    body = b"".join(images)
    fatbin = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
    names = b"\0.nv_fatbin\0.shstrtab\0"
    at, strings = 64, 64 + len(fatbin)
    headers = strings + len(names)
    sections = [(0, 0, 0), (1, at, len(fatbin)), (12, strings, len(names))]
    elf = b"\x7fELF\x02" + bytes(35) + struct.pack("<Q", headers) + bytes(10)
    elf += struct.pack("<HHH", 64, len(sections), 2)
    table = b"".join(
        struct.pack("<IIQQQQ", name, 1, 0, 0, start, size) + bytes(24)
        for name, start, size in sections
    )
    file.write_bytes(elf + fatbin + names + table)


MANGLED = b"\0.text._Z4copyPf\0.text._Z5scalePf\0"


def test_machine_code_of_other_gpus_becomes_zeros(tmp_path: Path) -> None:
    file = tmp_path / "_C.so"
    packed = zstandard.ZstdCompressor().compress(MANGLED)
    payloads = [b"\1" * 100, b"\2" * 64, MANGLED, packed, b"\5" * 40]
    entries = [(1, 90), (2, 80), (2, 90), (2, 90), (2, 100)]
    flags = [0x11, 0x11, 0x11, 0x8011, 0x11]
    images = [
        image(*entry, payload, flag)
        for entry, payload, flag in zip(entries, payloads, flags, strict=True)
    ]
    write_shared_object(file, images)
    before, seen = file.read_bytes(), list[Sequence[str]]()

    def wanted(names: Sequence[str]) -> bool:
        seen.append(names)
        return len(seen) == 2

    assert cut_images(file, wanted) == CutSizes(len(packed), 100 + 64 + len(MANGLED) + 40)
    assert seen == [["copy(float*)", "scale(float*)"]] * 2
    after = file.read_bytes()
    for number in (0, 1, 2, 4):
        before = before.replace(payloads[number], bytes(len(payloads[number])))
    assert after == before


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda file: file.write_text("text"), "is not a 64-bit ELF file"),
        (
            lambda file: write_shared_object(file, [image(2, 90, b"\1" * 8, 0x2011)]),
            "compressed with LZ4",
        ),
        (
            lambda file: write_shared_object(file, [image(2, 90, b"\1" * 64, 0x8011)]),
            "machine code does not decompress",
        ),
        (lambda file: write_shared_object(file, [bytes(80)]), "no entry of a fat binary at byte"),
    ],
)
def test_an_unknown_shared_object_is_refused(
    tmp_path: Path, write: Callable[[Path], None], message: str
) -> None:
    write(tmp_path / "_C.so")
    with pytest.raises(PackError, match=message):
        cut_images(tmp_path / "_C.so", every_kernel)


def test_only_the_attention_of_the_run_is_kept() -> None:
    kernel = (
        "flash::FlashAttnFwdSm90<128, cutlass::bfloat16_t, float, cutlass::arch::Sm90, true, "
        "false, {}, false, true, false, {}, true>"
    )
    assert attention_of_the_run([kernel.format("false", "false")])
    assert not attention_of_the_run([kernel.format("true", "false")])
    assert not attention_of_the_run([kernel.format("false", "true")])
    assert not attention_of_the_run([kernel.replace("128,", "256,").format("false", "false")])
    assert not attention_of_the_run(["flash::FlashAttnFwdSm80<128>"])
    assert attention_of_the_run(["prepare_varlen_num_blocks(int)"])
    assert kernels_of(b"\0.text._Z4copyPf\0") == ["copy(float*)"]
