"""Builds images with buildah: no daemon, no registry, a store of its own in the cache.

How this machine reaches the package registries (its certificates, its mirrors) is laid into the
build by read-only mounts, and leaves no trace in the image.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from localnode.errors import NodeError
from localnode.paths import REPOSITORY, Paths
from localnode.shell import run

_CERTIFICATES = Path("/etc/ssl")
_PIP_OPTIONS = ("CERT", "INDEX_URL", "EXTRA_INDEX_URL", "TRUSTED_HOST", "PROXY", "DEFAULT_TIMEOUT")
_BUILD_TIMEOUT_S = 3600
_STORE_TIMEOUT_S = 600  # another build may hold the store's lock


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """The two small files of an image apart from its layers, byte for byte."""

    manifest: bytes
    config: bytes


def buildah(paths: Paths, *words: str | Path, timeout_s: float = 60) -> str:
    """Run buildah on our own store."""
    return run(_command(paths, *words), timeout_s=timeout_s)


def has_local_image(paths: Paths, name: str) -> bool:
    """Whether our store has an image of this name."""
    listing = ("images", "--noheading", "--format", "{{.Name}}:{{.Tag}}")
    return name in buildah(paths, *listing, timeout_s=_STORE_TIMEOUT_S).split()


def build_image(
    paths: Paths,
    name: str,
    dockerfile: Path,
    base: str,
    target: str | None = None,
    context: Path = REPOSITORY,
    platform: str | None = None,
) -> None:
    """Build a stage of a Dockerfile of a checkout, the last stage if None.

    It is built for a platform such as linux/arm64, this machine's if None. Layers that need no
    change are reused.
    """
    buildah(paths, "rm", "--all", timeout_s=_STORE_TIMEOUT_S)  # what a killed build left
    buildah(
        paths,
        *("bud", "--layers", "--isolation", "chroot", "--pull=never", "--format", "oci"),
        *("--build-arg", f"BASE_IMAGE={base}", "--tag", name, "--file", dockerfile),
        *(() if target is None else ("--target", target)),
        *(() if platform is None else ("--platform", platform)),
        *_mount_words(paths),
        context,
        timeout_s=_BUILD_TIMEOUT_S,
    )


def write_layout(paths: Paths, name: str, folder: Path) -> None:
    """Write an image as an OCI layout."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    buildah(paths, "push", "--format", "oci", name, f"oci:{folder}", timeout_s=_BUILD_TIMEOUT_S)


def describe_image(paths: Paths, name: str) -> BuiltImage:
    """Look up what an image consists of."""
    words = ("inspect", "--type", "image", name)
    report = json.loads(buildah(paths, *words, timeout_s=_STORE_TIMEOUT_S))
    return BuiltImage(manifest=report["Manifest"].encode(), config=report["Config"].encode())


@contextmanager
def open_layer(paths: Paths, digest: str) -> Iterator[IO[bytes]]:
    """Read a layer as the tar file that has this digest."""
    layers = json.loads(run(_storage_command(paths, "layers", "--json"), timeout_s=60))
    layer_id = next(layer["id"] for layer in layers if layer.get("diff-digest") == digest)
    command = _storage_command(paths, "diff", "--uncompressed", layer_id)
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE) as reading:
        assert reading.stdout is not None
        yield reading.stdout
    if reading.returncode != 0:
        raise NodeError(f"cannot read layer {digest} of buildah's store")


def pip_settings(environment: Mapping[str, str]) -> str:
    """Write as a pip.conf how the environment lets pip reach a registry."""
    set_options = {name: environment.get(f"PIP_{name}") for name in _PIP_OPTIONS}
    lines = [f"{k.lower().replace('_', '-')} = {v}" for k, v in set_options.items() if v]
    return "\n".join(["[global]", *lines, ""])


def uv_settings(environment: Mapping[str, str]) -> str:
    """Write as a uv.toml how the environment lets uv reach a registry."""
    lines = ["system-certs = true"]
    index = environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL")
    if index:
        lines += ["[[index]]", f"url = {json.dumps(index)}", "default = true"]
    return "\n".join([*lines, ""])


def _mount_words(paths: Paths) -> list[str]:
    folder = paths.image_builds / "settings"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pip.conf").write_text(pip_settings(os.environ))
    (folder / "uv.toml").write_text(uv_settings(os.environ))
    mounts = {folder / "pip.conf": "/etc/pip.conf", folder / "uv.toml": "/etc/uv/uv.toml"}
    if _CERTIFICATES.is_dir():
        mounts[_CERTIFICATES] = str(_CERTIFICATES)
    return [word for here, there in mounts.items() for word in ("-v", f"{here}:{there}:ro")]


def _command(paths: Paths, *words: str | Path) -> list[str | Path]:
    root, work = _places(paths)
    store = ("--root", root, "--runroot", work, "--storage-driver", "overlay")
    return ["nice", "-n", "10", "buildah", *store, *words]


def _storage_command(paths: Paths, *words: str | Path) -> list[str | Path]:
    root, work = _places(paths)
    store = ("--graph", root, "--run", work, "--storage-driver", "overlay")
    return ["containers-storage", *store, *words]


def _places(paths: Paths) -> tuple[Path, Path]:
    return paths.cache / "buildah" / "storage", paths.cache / "buildah" / "run"
