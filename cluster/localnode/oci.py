"""Brings an image from an OCI layout folder into containerd, sending only what it lacks.

An archive may leave out blobs that containerd has in its store: it looks each up by its digest.
So a change of code moves kilobytes, not the gigabytes of torch below it.
"""

import io
import json
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from localnode.containerd import NAMESPACE, ctr
from localnode.errors import NodeError
from localnode.paths import Paths

_NAME_ANNOTATION = "io.containerd.image.name"
_MARKER = b'{"imageLayoutVersion": "1.0.0"}'


def import_image(paths: Paths, layout: Path, reference: str) -> int:
    """Import the layout's image under this reference; return how many bytes were sent."""
    present = ctr(paths, "content", "list", "--quiet").split()
    blobs = missing_blobs(layout, present)
    command = ["ctr", "--address", str(paths.containerd_socket), "--namespace", NAMESPACE]
    command += ["images", "import", "--no-unpack=false", "-"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as importer:
        assert importer.stdin is not None
        assert importer.stdout is not None
        try:
            _write_archive(importer.stdin, layout, blobs, reference)
            importer.stdin.close()
        except BrokenPipeError:
            pass  # ctr gave up; what it says tells why
        said = importer.stdout.read().decode(errors="replace")
    if importer.returncode != 0:
        raise NodeError(f"containerd did not take {reference}: {said}")
    return sum(blob.stat().st_size for blob in blobs)


def missing_blobs(layout: Path, present: Iterable[str]) -> list[Path]:
    """List the blobs of the layout whose digests are not among those present."""
    held = {digest.removeprefix("sha256:") for digest in present}
    blobs = sorted((layout / "blobs" / "sha256").iterdir())
    return [blob for blob in blobs if blob.name not in held]


def current_manifest(index: bytes) -> dict[str, Any]:
    """Find the image that was written last; a layout keeps former ones, without their name."""
    manifests: list[dict[str, Any]] = json.loads(index)["manifests"]
    return next((m for m in manifests if m.get("annotations")), manifests[-1])


def named_index(index: bytes, reference: str) -> bytes:
    """Name the layout's image as containerd reads it, and leave out every other."""
    manifest = {**current_manifest(index), "annotations": {_NAME_ANNOTATION: reference}}
    return json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode()


def drop_unused_blobs(layout: Path) -> None:
    """Delete the blobs of former images that the layout still holds."""
    blobs = layout / "blobs" / "sha256"
    manifest = current_manifest((layout / "index.json").read_bytes())
    parts = json.loads((blobs / manifest["digest"].removeprefix("sha256:")).read_bytes())
    used = {part["digest"] for part in (manifest, parts["config"], *parts["layers"])}
    for blob in blobs.iterdir():
        if f"sha256:{blob.name}" not in used:
            blob.unlink()


def _write_archive(stream: IO[bytes], layout: Path, blobs: Iterable[Path], reference: str) -> None:
    index = named_index((layout / "index.json").read_bytes(), reference)
    with tarfile.open(fileobj=stream, mode="w|") as tar:
        _add(tar, "oci-layout", _MARKER)
        for blob in blobs:
            tar.add(blob, arcname=f"blobs/sha256/{blob.name}")
        _add(tar, "index.json", index)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
