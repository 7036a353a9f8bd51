"""The kernels in C are compiled once, kept, and where they cannot be, the reason is said."""

import os
import platform
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specdecode_kernels.native import library

REPORT = """
    import torch
    from specdecode_kernels import launches, ops, native
    print(native.obstacle(torch.float32))
    ops.rms_norm(torch.ones(1, 4), torch.ones(4), 1e-5)
    print(dict(launches.snapshot()))
"""


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., list[str]]:
    """Say in a process of its own what stands in the way, and who computed a norm."""

    def run(**variables: str) -> list[str]:
        environment = {"PATH": "/usr/bin:/bin", "SPECDECODE_CACHE": str(tmp_path), **variables}
        command = [sys.executable, "-c", textwrap.dedent(REPORT)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    return run


def test_it_is_compiled_once_and_kept(report: Callable[..., list[str]], tmp_path: Path) -> None:
    assert report() == ["None", "{('rms_norm', 'native'): 1}"]
    (file,) = (tmp_path / "native").iterdir()
    assert file.suffix == ".so"
    before = file.stat()
    assert report() == ["None", "{('rms_norm', 'native'): 1}"]
    assert file.stat().st_mtime_ns == before.st_mtime_ns


def test_it_is_found_in_the_users_cache(report: Callable[..., list[str]], tmp_path: Path) -> None:
    report(SPECDECODE_CACHE="", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert list((tmp_path / "cache" / "specdecode" / "native").glob("*.so"))
    report(SPECDECODE_CACHE="", HOME=str(tmp_path / "home"))
    assert list((tmp_path / "home" / ".cache" / "specdecode" / "native").glob("*.so"))


def test_a_file_that_is_no_library_is_made_anew(
    report: Callable[..., list[str]], tmp_path: Path
) -> None:
    report()
    (file,) = (tmp_path / "native").iterdir()
    file.write_bytes(b"half of a")
    assert report() == ["None", "{('rms_norm', 'native'): 1}"]


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("/bin/no-such-compiler", "/bin/no-such-compiler does not run"),
        ("gcc -include /no/such/file.h", "cannot compile them"),
    ],
)
def test_without_a_compiler_torch_computes_and_the_reason_is_said(
    compiler: str, reason: str, report: Callable[..., list[str]], tmp_path: Path
) -> None:
    said, computed = report(CC=compiler)
    assert reason in said
    assert computed == "{}"
    assert not list(tmp_path.glob("native/*"))


def test_no_compiler_at_all_names_the_remedy(report: Callable[..., list[str]]) -> None:
    assert report(PATH="/nonexistent")[0] == (
        "there is no C compiler; install gcc and libc6-dev, or set CC"
    )


def test_a_cache_that_cannot_be_written_is_said(
    report: Callable[..., list[str]], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    said, computed = report(SPECDECODE_CACHE=str(tmp_path / "file"))
    assert "file" in said
    assert computed == "{}"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names an x86-64 level")
def test_a_processor_without_wide_vectors_computes_the_same(tmp_path: Path) -> None:
    """Half as wide registers: other instructions and blocks, the tests of the kernels again."""
    tests = ("test_packed_linear", "test_elementwise_native", "test_cpu_attention")
    variables = {"CC": "gcc -march=x86-64-v3", "SPECDECODE_CACHE": str(tmp_path)}
    again = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*again, *(str(Path(__file__).with_name(f"{name}.py")) for name in tests)],
        env=os.environ | variables,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert list(tmp_path.glob("native/*.so"))


def test_a_type_without_kernels_is_said() -> None:
    assert "not torch.float16" in str(library.obstacle(torch.float16))
    with pytest.raises(library.CannotCompile, match=r"not torch\.float64"):
        library.library(torch.float64)
