"""Only layers that containerd lacks are sent, under a name that it reads."""

import hashlib
import json

from localnode import transfer


def test_present_layers_are_left_out() -> None:
    layers = [{"digest": f"sha256:{name}", "size": 1} for name in ("aa", "bb", "cc")]
    manifest = json.dumps({"layers": layers}).encode()
    missing = transfer.missing_layers(manifest, ["sha256:bb", "sha256:dd"])
    assert [layer["digest"] for layer in missing] == ["sha256:aa", "sha256:cc"]


def test_the_index_names_the_image() -> None:
    manifest = b'{"layers": []}'
    (entry,) = json.loads(transfer.named_index(manifest, "docker.io/library/x:dev"))["manifests"]
    assert entry["digest"] == f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    assert entry["size"] == len(manifest)
    assert entry["annotations"] == {"io.containerd.image.name": "docker.io/library/x:dev"}
