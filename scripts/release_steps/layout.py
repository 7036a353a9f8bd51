"""OCI layouts: folders that hold images byte for byte as a registry will."""

import hashlib
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from scripts.release_steps.errors import ReleaseError

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
_LAYOUT_FILE = "oci-layout"


@dataclass(frozen=True, slots=True)
class Layout:
    """A folder with `index.json` and `blobs/sha256`."""

    folder: Path

    def index(self) -> dict[str, Any]:
        """The index, which lists manifests."""
        return cast(dict[str, Any], json.loads((self.folder / "index.json").read_text()))

    def index_digest(self) -> str:
        """What a registry calls the index."""
        content = (self.folder / "index.json").read_bytes()
        return f"sha256:{hashlib.sha256(content).hexdigest()}"

    def descriptor(self) -> dict[str, Any]:
        """The only manifest.

        Raises:
            ReleaseError: when there are more or none.
        """
        manifests = self.index()["manifests"]
        if len(manifests) != 1:
            raise ReleaseError(f"{self.folder} holds {len(manifests)} images, not one")
        return cast(dict[str, Any], manifests[0])

    def blob(self, digest: str) -> Path:
        """The file of a digest."""
        return self.folder / "blobs" / digest.replace(":", "/")

    def read_json(self, digest: str) -> dict[str, Any]:
        """A manifest or a config."""
        return cast(dict[str, Any], json.loads(self.blob(digest).read_text()))

    def layers(self) -> Iterator[tarfile.TarFile]:
        """Open the layers of the only image, lowest first."""
        for layer in self.read_json(self.descriptor()["digest"])["layers"]:
            with tarfile.open(self.blob(layer["digest"]), "r|*") as tar:
                yield tar


def platform_of(layout: Layout) -> str:
    """The platform for which the only image was built, such as linux/amd64."""
    manifest = layout.read_json(layout.descriptor()["digest"])
    config = layout.read_json(manifest["config"]["digest"])
    return f"{config['os']}/{config['architecture']}"


def unite(layouts: Mapping[str, Layout], to: Path, annotations: Mapping[str, str]) -> Layout:
    """Make one layout of the images for several platforms; its index names their platforms.

    Blobs are hard links, so nothing is copied on one file system.
    """
    blobs = to / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    manifests = []
    for platform, layout in layouts.items():
        for blob in (layout.folder / "blobs" / "sha256").iterdir():
            if not (blobs / blob.name).exists():
                os.link(blob, blobs / blob.name)
        system, _, architecture = platform.partition("/")
        described = {key: layout.descriptor()[key] for key in ("mediaType", "digest", "size")}
        place = {"os": system, "architecture": architecture}
        manifests.append({**described, "platform": place})
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": manifests,
        "annotations": dict(annotations),
    }
    (to / "index.json").write_text(json.dumps(index, indent=2))
    (to / _LAYOUT_FILE).write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    return Layout(to)
