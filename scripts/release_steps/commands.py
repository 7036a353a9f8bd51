"""Runs other programs, with their last lines in the error when they fail."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.release_steps.errors import ReleaseError

_SHOWN_LINES = 15


def run(
    words: Sequence[str | Path],
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 600,
    stdin: str = "",
) -> str:
    """Run a program to its end and return its output, stderr included.

    Raises:
        ReleaseError: with the command and its last lines, when it fails or takes too long.
    """
    command = [str(word) for word in words]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            input=stdin.encode(),
            cwd=directory,
            env={**os.environ, **(environment or {})},
            timeout=timeout_s,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReleaseError(f"cannot run {' '.join(command)}: {error}") from error
    output = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        last = "\n".join(output.splitlines()[-_SHOWN_LINES:])
        raise ReleaseError(f"{' '.join(command)} failed with {done.returncode}:\n{last}")
    return output


def succeeds(words: Sequence[str | Path], *, directory: Path | None = None) -> bool:
    """Whether a program ends with 0."""
    try:
        run(words, directory=directory)
    except ReleaseError:
        return False
    return True
