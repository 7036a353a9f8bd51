"""Only blobs that containerd lacks are sent, and only the newest image counts."""

import json
from pathlib import Path

from localnode import oci


def _layout(folder: Path, blobs: list[str]) -> Path:
    (folder / "blobs" / "sha256").mkdir(parents=True)
    for blob in blobs:
        (folder / "blobs" / "sha256" / blob).write_text("{}")
    return folder


def test_present_blobs_are_left_out(tmp_path: Path) -> None:
    layout = _layout(tmp_path, ["aa", "bb", "cc"])
    missing = oci.missing_blobs(layout, ["sha256:bb", "sha256:dd"])
    assert [blob.name for blob in missing] == ["aa", "cc"]


def test_the_index_names_the_newest_image_alone() -> None:
    former = {"digest": "sha256:old"}
    newest = {"digest": "sha256:new", "annotations": {"org.opencontainers.image.ref.name": "x"}}
    index = json.dumps({"schemaVersion": 2, "manifests": [former, newest]}).encode()
    (manifest,) = json.loads(oci.named_index(index, "docker.io/library/x:dev"))["manifests"]
    assert manifest["digest"] == "sha256:new"
    assert manifest["annotations"] == {"io.containerd.image.name": "docker.io/library/x:dev"}


def test_blobs_of_former_images_are_dropped(tmp_path: Path) -> None:
    layout = _layout(tmp_path, ["manifest", "config", "layer", "former"])
    manifest = {"config": {"digest": "sha256:config"}, "layers": [{"digest": "sha256:layer"}]}
    (layout / "blobs/sha256/manifest").write_text(json.dumps(manifest))
    index = {"manifests": [{"digest": "sha256:manifest"}]}
    (layout / "index.json").write_text(json.dumps(index))
    oci.drop_unused_blobs(layout)
    left = {blob.name for blob in (layout / "blobs/sha256").iterdir()}
    assert left == {"manifest", "config", "layer"}
