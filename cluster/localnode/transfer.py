"""Moves an image from buildah's store into containerd's, and of its layers only those it lacks.

An archive may leave out blobs that containerd has in its store: it looks each up by its digest.
Layers go uncompressed: packing and unpacking costs more than a local disk. So a change of code
moves a few hundred kilobytes, and not the gigabytes of torch below it.
"""

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from localnode.buildah import BuiltImage, describe_image, open_layer
from localnode.containerd import NAMESPACE, ctr
from localnode.errors import NodeError
from localnode.paths import Paths
from localnode.progress import report

_LAYOUT = b'{"imageLayoutVersion": "1.0.0"}'


def transfer_image(paths: Paths, local_name: str, reference: str) -> None:
    """Bring the image into containerd under this reference.

    Raises:
        NodeError: containerd refused it; the message has its output.
    """
    image = describe_image(paths, local_name)
    present = ctr(paths, "content", "list", "--quiet").split()
    layers = missing_layers(image.manifest, present)
    megabytes = sum(layer["size"] for layer in layers) / 1e6
    report(f"  {local_name}: {len(layers)} layers are new to the node, {megabytes:.1f} MB")
    with _kept(paths, reference):
        _import(paths, image, layers, reference)


@contextmanager
def _kept(paths: Paths, reference: str) -> Iterator[None]:
    """Keep what has this reference under another one as well.

    Its successor shares layers with it but holds them only when it is unpacked: before that,
    containerd's garbage collector would take them from under it.
    """
    if reference not in ctr(paths, "images", "list", "--quiet").split():
        yield
        return
    kept = f"{reference}-kept"
    ctr(paths, "images", "tag", "--force", reference, kept)
    try:
        yield
    finally:
        ctr(paths, "images", "remove", kept)


def _import(
    paths: Paths, image: BuiltImage, layers: Iterable[dict[str, Any]], reference: str
) -> None:
    socket = str(paths.containerd_socket)
    command = ["ctr", "--address", socket, "--namespace", NAMESPACE, "images", "import", "-"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as importer:
        assert importer.stdin is not None
        assert importer.stdout is not None
        try:
            _write_archive(importer.stdin, paths, image, layers, reference)
            importer.stdin.close()
        except BrokenPipeError:
            pass  # ctr gave up; its output has the reason
        output = importer.stdout.read().decode(errors="replace")
    if importer.returncode != 0:
        raise NodeError(f"containerd did not take {reference}: {output}")


def missing_layers(manifest: bytes, present: Iterable[str]) -> list[dict[str, Any]]:
    """List the layers of a manifest whose digests are not among those present."""
    held = set(present)
    layers: list[dict[str, Any]] = json.loads(manifest)["layers"]
    return [layer for layer in layers if layer["digest"] not in held]


def named_index(manifest: bytes, reference: str) -> bytes:
    """Write the index of an archive that holds one image under this reference."""
    entry = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": _digest(manifest),
        "size": len(manifest),
        "annotations": {"io.containerd.image.name": reference},
    }
    return json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()


def _write_archive(
    stream: IO[bytes],
    paths: Paths,
    image: BuiltImage,
    layers: Iterable[dict[str, Any]],
    reference: str,
) -> None:
    with tarfile.open(fileobj=stream, mode="w|", bufsize=1 << 20) as tar:
        _add(tar, "oci-layout", _LAYOUT)
        for layer in layers:
            with open_layer(paths, layer["digest"]) as content:
                _add_stream(tar, _blob_name(layer["digest"]), layer["size"], content)
        _add(tar, _blob_name(_digest(image.config)), image.config)
        _add(tar, _blob_name(_digest(image.manifest)), image.manifest)
        _add(tar, "index.json", named_index(image.manifest, reference))


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    _add_stream(tar, name, len(content), io.BytesIO(content))


def _add_stream(tar: tarfile.TarFile, name: str, size: int, content: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = size
    tar.addfile(entry, content)


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _blob_name(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
