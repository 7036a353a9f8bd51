"""AMX in software: refusals and their one log line, threads, forks and signals.

`make test-tiles` compares the processor's own, which no test here runs.
"""

import errno
import os
import platform
import select
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specdecode_kernels.cpu.amx import TILES_VARIABLE, choose_products
from specdecode_kernels.cpu.compile import CACHE_VARIABLE
from specdecode_kernels.cpu.library import Library
from tests.kernels import compare_tiles
from tests.kernels.blocks32 import emulate_linear
from tests.kernels.drawn_maps import DrawnMap, draw_map
from tests.kernels.maps_library import agree, compile_maps, map_in_blocks32

REFUSED = "SOFTWARE_TILES_ERRNO"
ERRNOS = (errno.EPERM, errno.ENOSYS, errno.EINVAL)
BUILDS = {
    "use gcc 11 or later": ("#if __has_include(<amxbf16intrin.h>)", "#if 0"),
    "see flags in /proc/cpuinfo": ("(d >> 22 & 5) != 5", "1"),
    "use Linux 5.16 or later": (
        "    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d >> 22 & 5) != 5) return"
        " NO_PROCESSOR;\n    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1))",
        "    (void)low, (void)high;\n    if (!__get_cpuid(1, &a, &b, &c, &d) || 1)",
    ),
}
"""Remedies, by what brings the refusal about."""
MAPS = 12
FORK_LIMIT_S = 120


@pytest.fixture(scope="module")
def in_software(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return compile_maps(tmp_path_factory.mktemp("software"), in_software=True)


@pytest.fixture(scope="module")
def drawn() -> list[tuple[DrawnMap, Tensor]]:
    maps = [draw_map(seed) for seed in range(2 * 10**6, 2 * 10**6 + MAPS)]
    return [(one, emulate_linear(one.x, one.weight, one.bias)) for one in maps]


def assert_bits(library: Library, drawn: list[tuple[DrawnMap, Tensor]]) -> None:
    for one, wanted in drawn:
        assert agree(map_in_blocks32(library, one), wanted), one.name


def assert_one_refusal(
    library: Library, remedy: str, caplog: pytest.LogCaptureFixture, drawn
) -> None:
    chosen = choose_products(library)
    assert chosen.name == "multiply-adds"
    assert remedy in chosen.reason
    wanted = f"multiply-adds compute sums in the order blocks32, as {chosen.reason}"
    assert caplog.messages == [wanted]
    assert_bits(library, drawn)


@pytest.mark.parametrize("number", ERRNOS, ids=errno.errorcode.get)
def test_a_refused_permission_is_logged_once_and_multiply_adds_compute(
    number: int, in_software: Library, monkeypatch, caplog: pytest.LogCaptureFixture, drawn
) -> None:
    monkeypatch.setenv(TILES_VARIABLE, "on")
    monkeypatch.setenv(REFUSED, str(number))
    remedy = f"({errno.errorcode[number]}): permit arch_prctl in the seccomp profile"
    assert_one_refusal(in_software, remedy, caplog, drawn)


@pytest.mark.parametrize("remedy", BUILDS)
def test_a_machine_without_amx_is_logged_once_and_multiply_adds_compute(
    remedy: str, tmp_path: Path, monkeypatch, caplog: pytest.LogCaptureFixture, drawn
) -> None:
    monkeypatch.setenv(TILES_VARIABLE, "on")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert_one_refusal(compile_maps(tmp_path, dict([BUILDS[remedy]])), remedy, caplog, drawn)


def test_nothing_is_asked_for_without_the_switch(
    in_software: Library, monkeypatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(TILES_VARIABLE, raising=False)
    assert choose_products(in_software) == ("multiply-adds", "SPECDECODE_TILES is not set")
    monkeypatch.setenv(TILES_VARIABLE, "on")
    assert choose_products(in_software) == ("amx", "SPECDECODE_TILES is on")
    assert not caplog.messages


@pytest.fixture
def tiles(in_software: Library) -> Library:
    assert in_software.use_amx(is_wanted=True) == 0
    return in_software


def test_threads_leave_the_bits_alone(tiles: Library, drawn) -> None:
    """Of Python, each of which has threads of OpenMP."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: assert_bits(tiles, drawn), range(8)))
    finally:
        torch.set_num_threads(before)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_gives_the_same_bits(tiles: Library, drawn) -> None:
    """Of a thread that has no team of OpenMP, whose other threads a fork would lack."""
    torch.set_num_threads(1)
    child = os.fork()
    if not child:
        same = all(agree(map_in_blocks32(tiles, one), wanted) for one, wanted in drawn)
        os._exit(0 if same else 1)
    ended, *_ = select.select([os.pidfd_open(child)], [], [], FORK_LIMIT_S)
    if not ended:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_signals_leave_the_bits_alone(tiles: Library, drawn) -> None:
    seen = list[int]()
    before = signal.signal(signal.SIGALRM, lambda number, _: seen.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        while len(seen) < 20:
            assert_bits(tiles, drawn)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="AMX is of x86-64")
def test_the_compiler_at_hand_compiles_the_instructions() -> None:
    """In a process that maps nothing, as the permission cannot be given back."""
    header = subprocess.run(
        ["gcc", "-E", "-P", "-x", "c", "-"],
        input="#if __has_include(<amxbf16intrin.h>)\nknown\n#endif\n",
        capture_output=True,
        text=True,
        check=True,
    )
    if "known" not in header.stdout:
        pytest.skip("gcc is older than 11")
    program = (
        "import torch; from specdecode_kernels.cpu.loading import load_library\n"
        "print(load_library(torch.bfloat16).use_amx(is_wanted=True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) != -1


def test_the_comparison_counts_maps_that_differ(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare_tiles.main(["--maps", "20"]) == 0
    assert "20 maps from 0 on, 0 differ" in capsys.readouterr().out
