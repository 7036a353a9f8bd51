"""Older commits to compare with, which travel as folders, as the GPU machine has no history."""

from pathlib import Path

from bench.cpu.base_comparison.checkout import export

BASE_PARTS = (
    "bench",
    "checks",
    "crds/src",
    "engine/src",
    "kernels/src",
    "tests/shadow_cuda",
    ":(exclude)bench/results",
)
"""Of an older commit: what `bench/gpu` imports, without the example models."""


def base_folder(carry: Path, commit: str) -> Path:
    """Return where the files of an older commit lie."""
    return carry / f"base-{commit}"


def carry_base(commit: str, carry: Path) -> None:
    """Write what benchmarks of an older commit need.

    Raises:
        subprocess.CalledProcessError: the repository has no such commit.
    """
    folder = base_folder(carry, commit)
    if not folder.exists():
        export(commit, folder, BASE_PARTS)
