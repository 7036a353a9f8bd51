"""The wheels of an image are those that uv would install on its platform."""

from pathlib import Path

import pytest

from scripts.release_steps.images import RELEASED_IMAGES, ReleasedImage
from scripts.release_steps.lock import (
    PLATFORMS,
    LockedWheel,
    best_wheel,
    locked_wheels,
    without_wheel,
)
from scripts.release_steps.wheels import main

ROOT = Path(__file__).resolve().parents[2]
AMD64, ARM64 = PLATFORMS["linux/amd64"], PLATFORMS["linux/arm64"]
BUILDS = [(image, name) for image in RELEASED_IMAGES for name in image.platforms]


def wheels(*names: str) -> list[dict[str, str]]:
    return [{"url": f"https://files.example/{name}.whl"} for name in names]


@pytest.mark.parametrize(
    ("image", "name"), BUILDS, ids=lambda each: str(getattr(each, "name", each))
)
def test_every_dependency_has_a_wheel_with_a_hash(image: ReleasedImage, name: str) -> None:
    found = locked_wheels(ROOT, image.package, image.extras, PLATFORMS[name])
    assert without_wheel(found) == []
    assert all(wheel.sha256 and len(wheel.sha256) == 64 for wheel in found)
    assert len({wheel.name for wheel in found}) == len(found) > 30
    other = "x86_64" if PLATFORMS[name].machine == "aarch64" else "aarch64"
    assert not [wheel.file for wheel in found if other in wheel.file]


def test_the_operator_has_no_torch_and_the_gpu_image_has_flashinfer() -> None:
    names = {
        image.name: {
            wheel.name for wheel in locked_wheels(ROOT, image.package, image.extras, AMD64)
        }
        for image in RELEASED_IMAGES
    }
    assert "torch" not in names["operator"]
    assert {"torch", "triton", "opentelemetry-sdk"} <= names["engine-cpu"] < names["engine"]
    assert any(name.startswith("flashinfer") for name in names["engine"] - names["engine-cpu"])


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        (("a-1-py3-none-any", "a-1-cp311-cp311-manylinux_2_28_aarch64"), 1),
        (("a-1-cp311-cp311-manylinux_2_28_x86_64", "a-1-cp39-abi3-manylinux_2_17_aarch64"), 1),
        (("a-1-cp312-cp312-manylinux_2_28_aarch64", "a-1-cp311-cp311-musllinux_1_2_aarch64"), None),
        (("a-1-cp311-cp311-manylinux_2_99_aarch64",), None),
        (("a-1-cp311-cp311-manylinux2014_aarch64", "a-1-cp311-cp311-manylinux_2_31_aarch64"), 1),
    ],
)
def test_the_best_wheel_of_a_platform(given: tuple[str, ...], chosen: int | None) -> None:
    entries = wheels(*given)
    assert best_wheel(entries, ARM64) == (None if chosen is None else entries[chosen])


def test_a_distribution_without_a_wheel_is_named() -> None:
    assert without_wheel([LockedWheel("a", "1.0", None, None)]) == ["a 1.0"]


def test_the_check_prints_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["linux/arm64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = ["operator", "router", "engine", "engine-cpu"]
    assert [line.split()[1].rstrip(":") for line in lines] == names
    assert main(["windows/amd64"]) == 2
    assert "there is linux/amd64, linux/arm64" in capsys.readouterr().err
