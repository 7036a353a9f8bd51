"""The C kernels are compiled once and kept; where that fails, the reason is reported."""

import ctypes
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specdecode_kernels.cpu import compile, loading
from specdecode_kernels.cpu.compile import CannotCompile, processor_fingerprint

REPORT = """
    import torch
    from specdecode_kernels import choose_backend, cpu
    print(cpu.unsupported_reason(torch.float32))
    ops = choose_backend("auto", torch.device("cpu"), torch.float32, 4).backend
    ops.rms_norm(torch.ones(1, 4), torch.ones(4), 1e-5)
    print(ops.name, ops.attention)
"""


CACHED_GCC = """
for to; do :; done  # the last argument, which follows -o
case "$*" in *.c*) ;; *) exec {gcc} "$@" ;; esac
asked="$*"
kept={folder}/$(echo "${{asked%"$to"}}" | cksum | cut -d" " -f1)
test -e "$kept" || {gcc} "$@" -O1 -o "$kept" || exit
cp "$kept" "$to"
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PATH with a gcc that compiles once what it is asked for again, and optimizes little."""
    gcc = tmp_path_factory.mktemp("bin") / "gcc"
    gcc.write_text("#!/bin/sh" + CACHED_GCC.format(gcc=shutil.which("gcc"), folder=gcc.parent))
    gcc.chmod(0o755)
    return f"{gcc.parent}:/usr/bin:/bin"


@pytest.fixture
def report(path: str, tmp_path: Path) -> Callable[..., list[str]]:
    """Report, from a separate process, why C kernels are unsupported and which backend ran."""

    def run(**variables: str) -> list[str]:
        environment = {"PATH": path, "SPECDECODE_CACHE": str(tmp_path), **variables}
        command = [sys.executable, "-c", textwrap.dedent(REPORT)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    return run


def test_it_is_compiled_once_and_kept(report: Callable[..., list[str]], tmp_path: Path) -> None:
    assert report() == ["None", "cpu cpu"]
    file, tuning = sorted((tmp_path / "cpu").iterdir(), key=lambda one: one.suffix, reverse=True)
    assert (file.suffix, tuning.suffix) == (".so", ".json")
    assert tuning.stem == f"{file.stem}-{processor_fingerprint()}"
    before = file.stat()
    assert report() == ["None", "cpu cpu"]
    assert file.stat().st_mtime_ns == before.st_mtime_ns


def test_it_is_found_in_the_users_cache(report: Callable[..., list[str]], tmp_path: Path) -> None:
    report(SPECDECODE_CACHE="", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert list((tmp_path / "cache" / "specdecode" / "cpu").glob("*.so"))
    report(SPECDECODE_CACHE="", HOME=str(tmp_path / "home"))
    assert list((tmp_path / "home" / ".cache" / "specdecode" / "cpu").glob("*.so"))


def test_a_file_that_is_no_library_is_compiled_again(
    report: Callable[..., list[str]], tmp_path: Path
) -> None:
    report()
    (file,) = (tmp_path / "cpu").glob("*.so")
    file.write_bytes(b"half of a")
    assert report() == ["None", "cpu cpu"]


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("/bin/no-such-compiler", "/bin/no-such-compiler does not run"),
        ("gcc -include /no/such/file.h", "cannot compile them"),
    ],
)
def test_without_a_compiler_torch_computes_and_the_reason_is_reported(
    compiler: str, reason: str, report: Callable[..., list[str]], tmp_path: Path
) -> None:
    reported, computed = report(CC=compiler)
    assert reason in reported
    assert computed == "torch torch"
    assert not list(tmp_path.glob("cpu/*"))


def test_no_compiler_at_all_names_the_remedy(report: Callable[..., list[str]]) -> None:
    assert report(PATH="/nonexistent")[0] == (
        "there is no C compiler; install gcc and libc6-dev, or set CC"
    )


def test_a_cache_that_cannot_be_written_is_reported(
    report: Callable[..., list[str]], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    reported, computed = report(SPECDECODE_CACHE=str(tmp_path / "file"))
    assert f"{tmp_path}/file/cpu cannot be written (Not a directory): make it writable" in reported
    assert "set SPECDECODE_CACHE" in reported
    assert computed == "torch torch"


def test_a_linker_that_fails_is_reported_by_its_own_reason(
    report: Callable[..., list[str]],
) -> None:
    reported, computed = report(CC="gcc -l:no-such-library.so")
    assert "no-such-library.so: No such file or directory" in reported
    assert computed == "torch torch"


PRECOMPILED = """
    import sys
    from pathlib import Path
    import torch
    from specdecode_kernels.cpu import compile, loading
    compile.PRECOMPILED = Path(sys.argv[1])
    if sys.argv[2] == "True":
        flags = loading.flags_of(torch.float32)
        compile.precompile(loading.SOURCES, loading.HEADERS, flags, sys.argv[3])
    print(loading.load_library(torch.float32).file)
"""


def needs(*abilities: str) -> pytest.MarkDecorator:
    """Skip where the processor lacks instructions, by their names in /proc/cpuinfo."""
    missing = set(abilities) - set(Path("/proc/cpuinfo").read_text().split())
    return pytest.mark.skipif(bool(missing), reason=f"this processor lacks {sorted(missing)}")


@pytest.mark.parametrize(
    "level",
    [
        pytest.param("x86-64-v3", marks=needs("avx2")),
        pytest.param("x86-64-v4+avx512bf16+avx512vbmi", marks=needs("avx512_bf16", "avx512vbmi")),
    ],
)
def test_what_an_image_contains_is_not_compiled(level: str, path: str, tmp_path: Path) -> None:
    """In a folder that cannot be written, as an image's; the tuning is kept in the cache."""

    def load(*, precompiles: bool) -> Path:
        environment = {"PATH": path, "SPECDECODE_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                textwrap.dedent(PRECOMPILED),
                str(image),
                str(precompiles),
                level,
            ],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return Path(done.stdout.strip())

    image = tmp_path / "image"
    file = load(precompiles=True)
    assert file.parent == image
    assert file.name.startswith(f"{level}-")
    assert [one.suffix for one in (tmp_path / "cache" / "cpu").iterdir()] == [".json"]
    assert load(precompiles=False) == file
    file.write_bytes(b"for another C library")
    assert load(precompiles=False).parent == tmp_path / "cache" / "cpu"


def test_a_library_for_any_processor_is_compiled_next_to_those_of_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the sources of NGRAM, in an image that contains the kernels."""
    source = tmp_path / "answer.c"
    source.write_text("long answer(void) { return 42; }")
    image, cache = tmp_path / "image", tmp_path / "cache"
    image.mkdir()
    monkeypatch.setattr(compile, "PRECOMPILED", image)
    monkeypatch.setenv(compile.CACHE_VARIABLE, str(cache))
    monkeypatch.delenv("CC", raising=False)
    flags = ("-O3", "-fPIC", "-shared")
    loaded = compile.compile_library((source,), (), flags, lambda file: ctypes.CDLL(str(file)))
    assert loaded.answer() == 42
    assert [one.suffix for one in (cache / "cpu").iterdir()] == [".so"]


@needs("avx512f")
def test_a_processor_without_wide_vectors_computes_the_same(tmp_path: Path) -> None:
    """Half as wide registers: other instructions and blocks, the tests of the kernels again."""
    tests = ("test_packed_linear", "test_experts", "test_elementwise_cpu", "test_cpu_attention")
    others = "test_float4_cpu", "test_gated_delta_cpu", "test_processor_bits", "test_blocks32_maps"
    run_again_at("x86-64-v3", (*tests, *others, "test_low_rank"), tmp_path)


@needs("avx512f", "avx512_bf16")
def test_a_processor_without_an_instruction_for_pairs_computes_the_same(tmp_path: Path) -> None:
    run_again_at("x86-64-v4", ("test_processor_bits", "test_blocks32_maps"), tmp_path)


def run_again_at(level: str, tests: tuple[str, ...], cache: Path) -> None:
    """Run tests of the kernels with those of a lower level than this processor's."""
    variables = {"CC": f"gcc -march={level}", "SPECDECODE_CACHE": str(cache)}
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
    assert list(cache.glob("cpu/*.so"))


def test_a_type_without_kernels_is_reported() -> None:
    assert "not torch.float16" in str(loading.unsupported_reason(torch.float16))
    with pytest.raises(CannotCompile, match=r"not torch\.float64"):
        loading.load_library(torch.float64)
