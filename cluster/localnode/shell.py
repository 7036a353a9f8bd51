"""Runs another program to its end and turns its failure into an error that shows its words."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from localnode.errors import NodeError

_SHOWN_LINES = 25


def run(
    argv: Sequence[str | Path],
    *,
    timeout_s: float = 60,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    stdin: bytes = b"",
) -> str:
    """Run to the end and return its stdout; raise NodeError when it fails or takes too long."""
    words = [str(word) for word in argv]
    variables = {**os.environ, **(environment or {})}
    try:
        done = subprocess.run(
            words, capture_output=True, timeout=timeout_s, env=variables, cwd=directory, input=stdin
        )
    except subprocess.TimeoutExpired as expired:
        raise NodeError(f"{words[0]} did not end in {timeout_s:.0f} s: {words}") from expired
    except OSError as missing:
        raise NodeError(f"cannot run {words[0]}: {missing}") from missing
    if done.returncode != 0:
        output = (done.stdout + done.stderr).decode(errors="replace").splitlines()
        raise NodeError(
            "\n".join([f"failed ({done.returncode}): {words}", *output[-_SHOWN_LINES:]])
        )
    return done.stdout.decode(errors="replace")


def succeeds(argv: Sequence[str | Path], *, timeout_s: float = 10) -> bool:
    """Whether the program runs and ends with 0."""
    try:
        run(argv, timeout_s=timeout_s)
    except NodeError:
        return False
    return True
