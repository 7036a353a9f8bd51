"""llama.cpp as a peer: only the expected archive, on the only kind of machine that it is for."""

import hashlib
import platform
import tarfile
from pathlib import Path

import pytest

from bench.cpu.peers.llama_cpp import SHA512, VERSION, ensure_llama_cpp, unpack
from checks.harness.installation import PeerUnavailable


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    (tmp_path / "library.so").write_text("code")
    path = tmp_path / "some.tgz"
    with tarfile.open(path, "w:gz") as packed:
        packed.add(tmp_path / "library.so", "package/library.so")
    return path


def test_an_archive_is_unpacked_only_if_its_checksum_is_the_expected_one(
    archive: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "unpacked"
    with pytest.raises(PeerUnavailable, match=rf"some\.tgz has the checksum .*, not {SHA512[:12]}"):
        unpack(archive, SHA512, folder)
    assert not folder.exists()
    unpack(archive, hashlib.sha512(archive.read_bytes()).hexdigest(), folder)
    assert (folder / "package" / "library.so").read_text() == "code"


def test_another_kind_of_machine_is_refused_and_libraries_that_are_there_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"llama-cpp-{VERSION}-{SHA512[:12]}"
    folder.mkdir()
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(PeerUnavailable, match="for Linux on x86_64 only, not Linux on aarch64"):
        ensure_llama_cpp(tmp_path)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert ensure_llama_cpp(tmp_path).is_relative_to(folder)
