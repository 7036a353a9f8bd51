"""A small OCI layout, written byte by byte."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

from scripts.release_steps.layout import Layout


def write_layout(folder: Path, files: Mapping[str, str], architecture: str = "amd64") -> Layout:
    """One image of one layer with these files."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(content: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        media = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(content)}

    plain = _tar(files)
    layer = blob(gzip.compress(plain, mtime=0), "layer.v1.tar+gzip")
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]}
    described = {"architecture": architecture, "os": "linux", "config": {}, "rootfs": rootfs}
    config = blob(json.dumps(described).encode(), "config.v1+json")
    kinds = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json"}
    content = json.dumps({**kinds, "config": config, "layers": [layer]}).encode()
    manifest = blob(content, "manifest.v1+json")
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return Layout(folder)


def _tar(files: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()
