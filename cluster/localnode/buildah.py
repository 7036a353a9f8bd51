"""Builds images with buildah: no daemon, no registry, a store of its own in the cache.

How this machine reaches the package registries (its certificates, its mirrors) is laid into the
build by read-only mounts, and leaves no trace in the image.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from localnode.paths import REPOSITORY, Paths
from localnode.shell import run

_CERTIFICATES = Path("/etc/ssl")
_PIP_OPTIONS = ("CERT", "INDEX_URL", "EXTRA_INDEX_URL", "TRUSTED_HOST", "PROXY", "DEFAULT_TIMEOUT")
_BUILD_TIMEOUT_S = 3600
_STORE_TIMEOUT_S = 600  # another build may hold the store's lock
# gzip takes several times longer to write and to read, for a larger file
_FAST_COMPRESSION = ("--compression-format", "zstd", "--compression-level", "1")


def buildah(paths: Paths, *words: str | Path, timeout_s: float = 60) -> str:
    """Run buildah on our own store."""
    return run(_command(paths, *words), timeout_s=timeout_s)


def has_local_image(paths: Paths, name: str) -> bool:
    """Tell whether our store has an image of this name."""
    listing = ("images", "--noheading", "--format", "{{.Name}}:{{.Tag}}")
    return name in buildah(paths, *listing, timeout_s=_STORE_TIMEOUT_S).split()


def build_image(paths: Paths, name: str, dockerfile: Path, base: str) -> None:
    """Build one of the repository's Dockerfiles; layers that need no change are reused."""
    buildah(
        paths,
        *("bud", "--layers", "--isolation", "chroot", "--pull=never", "--format", "oci"),
        *("--build-arg", f"BASE_IMAGE={base}", "--tag", name, "--file", dockerfile),
        *_mount_words(paths),
        REPOSITORY,
        timeout_s=_BUILD_TIMEOUT_S,
    )


def export_image(paths: Paths, name: str, layout: Path) -> None:
    """Write the image into an OCI layout folder, skipping the layers that are there."""
    layout.parent.mkdir(parents=True, exist_ok=True)
    words = ("push", *_FAST_COMPRESSION, name, f"oci:{layout}:{name}")
    buildah(paths, *words, timeout_s=_BUILD_TIMEOUT_S)


def pip_settings(environment: Mapping[str, str]) -> str:
    """Write as a pip.conf what the environment tells pip about reaching a registry."""
    set_options = {name: environment.get(f"PIP_{name}") for name in _PIP_OPTIONS}
    lines = [f"{k.lower().replace('_', '-')} = {v}" for k, v in set_options.items() if v]
    return "\n".join(["[global]", *lines, ""])


def uv_settings(environment: Mapping[str, str]) -> str:
    """Write as a uv.toml what the environment tells uv about reaching a registry."""
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
    store = paths.cache / "buildah"
    places = ("--root", store / "storage", "--runroot", store / "run")
    return ["nice", "-n", "10", "buildah", *places, "--storage-driver", "overlay", *words]
