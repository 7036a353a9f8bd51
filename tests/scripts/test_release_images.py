"""Images for several platforms become one index; a bill of materials lists what an image holds."""

import json
from pathlib import Path

import pytest

from scripts.release_steps.errors import ReleaseError
from scripts.release_steps.images import RELEASED_IMAGES, chosen_images
from scripts.release_steps.layout import INDEX_TYPE, platform_of, unite
from scripts.release_steps.lock import LockedWheel
from scripts.release_steps.sbom import Contents, bill_of_materials, compare, read_contents
from tests.scripts.oci import write_layout

SITE = "opt/venv/lib/python3.11/site-packages"
STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2:2.36-9+deb12u14

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""
FILES = {
    f"{SITE}/Foo_Bar-1.2.dist-info/METADATA": "",
    f"{SITE}/specdecode_api-0.2.0.dist-info/METADATA": "",
    f"{SITE}/foo_bar/__init__.py": "",
    "usr/lib/python3/dist-packages/pip-23.0.dist-info/METADATA": "",
    "var/lib/dpkg/status": STATUS,
}
WHEEL = LockedWheel(
    "foo-bar", "1.2", "https://files.example/foo_bar-1.2-py3-none-any.whl", "ab" * 32
)
CONTENTS = Contents(
    frozenset({("foo-bar", "1.2"), ("specdecode-api", "0.2.0")}),
    (("libc6", "2:2.36-9+deb12u14", "amd64"),),
)


def test_what_an_image_holds_is_read_from_its_layers(tmp_path: Path) -> None:
    assert read_contents(write_layout(tmp_path, FILES)) == CONTENTS


def test_an_image_other_than_the_lock_is_refused() -> None:
    compare([WHEEL], ["api"], "0.2.0", CONTENTS)
    other = LockedWheel("foo-bar", "1.3", WHEEL.url, WHEEL.sha256)
    with pytest.raises(ReleaseError) as refused:
        compare([other], ["api"], "0.2.0", CONTENTS)
    assert "[('foo-bar', '1.3')] missing, [('foo-bar', '1.2')] not locked" in str(refused.value)


def test_a_bill_names_every_wheel_member_and_debian_package() -> None:
    arguments = ("operator", "0.2.0", f"sha256:{'c' * 64}", [WHEEL], ["api"], CONTENTS)
    bill = bill_of_materials(*arguments)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert [each["purl"] for each in bill["components"]] == [
        "pkg:pypi/foo-bar@1.2",
        "pkg:pypi/specdecode-api@0.2.0",
        "pkg:deb/debian/libc6@2%3A2.36-9%2Bdeb12u14?arch=amd64",
    ]
    assert bill["components"][0]["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
    assert bill["components"][0]["externalReferences"][0]["url"] == WHEEL.url
    assert bill == bill_of_materials(*arguments)
    assert bill["metadata"]["component"]["hashes"][0]["content"] == "c" * 64


def test_images_of_several_platforms_become_one_index(tmp_path: Path) -> None:
    layouts = {
        f"linux/{name}": write_layout(tmp_path / name, FILES, name) for name in ("amd64", "arm64")
    }
    assert [platform_of(layout) for layout in layouts.values()] == list(layouts)
    index = unite(layouts, tmp_path / "index", {"org.opencontainers.image.version": "1"})
    content = index.index()
    assert content["mediaType"] == INDEX_TYPE
    assert [each["platform"]["architecture"] for each in content["manifests"]] == ["amd64", "arm64"]
    for described, layout in zip(content["manifests"], layouts.values(), strict=True):
        assert described["digest"] == layout.descriptor()["digest"]
        assert index.read_json(described["digest"]) == layout.read_json(described["digest"])
    assert len(list((tmp_path / "index" / "blobs" / "sha256").iterdir())) == 5  # the layer is one
    again = unite(layouts, tmp_path / "again", {"org.opencontainers.image.version": "1"})
    assert again.index_digest() == index.index_digest()


def test_a_layout_of_several_images_is_no_image(tmp_path: Path) -> None:
    layout = write_layout(tmp_path, FILES)
    content = layout.index()
    content["manifests"] *= 2
    (tmp_path / "index.json").write_text(json.dumps(content))
    with pytest.raises(ReleaseError, match="holds 2 images, not one"):
        layout.descriptor()


def test_images_are_chosen_by_name() -> None:
    assert chosen_images([]) == list(RELEASED_IMAGES)
    assert [image.name for image in chosen_images(["engine-cpu"])] == ["engine-cpu"]
    with pytest.raises(
        ReleaseError, match="--images tools: there is operator, router, engine, engine-cpu"
    ):
        chosen_images(["tools"])
    assert len({(image.repository, image.suffix) for image in RELEASED_IMAGES}) == 4
