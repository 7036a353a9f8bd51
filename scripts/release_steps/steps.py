"""The order of a release: make and check everything, publish what nobody sees, then name it.

Until `publish the source` nothing can be found by its name: images lie in the registry by digest.
Whatever fails, the same command continues: what is there already is pushed again for nothing.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from scripts.release_steps import chart, images, sbom
from scripts.release_steps.errors import ReleaseError
from scripts.release_steps.images import ReleasedImage
from scripts.release_steps.layout import Layout, unite
from scripts.release_steps.lock import PLATFORMS, LockedWheel, locked_wheels, without_wheel
from scripts.release_steps.notes import write_notes
from scripts.release_steps.publish import Registry
from scripts.release_steps.source import Source


@dataclass(frozen=True, slots=True)
class Plan:
    """What is released, and where it goes."""

    source: Source
    branch: str
    images: list[ReleasedImage]
    platforms: list[str]
    registry: Registry
    folder: Path

    def builds(self) -> list[tuple[ReleasedImage, str]]:
        """Each image with each of its platforms."""
        return [
            (image, name)
            for image in self.images
            for name in image.platforms
            if name in self.platforms
        ]


@dataclass(slots=True)
class Made:
    """What the steps have made so far."""

    layouts: dict[str, dict[str, Layout]] = field(default_factory=dict)  # by image and platform
    indexes: dict[str, Layout] = field(default_factory=dict)
    bills: dict[tuple[str, str], Path] = field(default_factory=dict)  # by image and platform
    package: Path | None = None
    references: dict[str, str] = field(default_factory=dict)  # pushed indexes
    chart_reference: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One step, and what is published when it fails."""

    name: str
    run: Callable[[Plan, Made], None]
    after_failure: str = "nothing is published"


def check_wheels(plan: Plan, _made: Made) -> None:
    """Every distribution of every image has a wheel for its platform."""
    for image, name in plan.builds():
        wheels = _wheels(plan, image, name)
        if lacking := without_wheel(wheels):
            raise ReleaseError(f"{image.name} on {name}: no wheel in uv.lock for {lacking}")


def check_unpublished(plan: Plan, _made: Made) -> None:
    """A version is released once."""
    version = plan.source.version
    if plan.registry.holds("charts/specdecode", version):
        raise ReleaseError(f"charts/specdecode:{version} is published: choose a later version")


def build_images(plan: Plan, made: Made) -> None:
    """Build each image for each platform, and unite platforms in an index."""
    for image, name in plan.builds():
        folder = plan.folder / "images" / image.name / name.replace("/", "-")
        layout = images.build(plan.source.folder, image, PLATFORMS[name], folder)
        made.layouts.setdefault(image.name, {})[name] = layout
    for image in plan.images:
        labels = {
            "org.opencontainers.image.title": image.repository,
            "org.opencontainers.image.version": plan.source.version,
            "org.opencontainers.image.revision": plan.source.commit(),
            "org.opencontainers.image.licenses": "Apache-2.0",
        }
        to = plan.folder / "images" / image.name / "index"
        made.indexes[image.name] = unite(made.layouts[image.name], to, labels)


def write_bills(plan: Plan, made: Made) -> None:
    """Compare each image with the lock and write its bill of materials."""
    for image, name in plan.builds():
        layout = made.layouts[image.name][name]
        contents, wheels = sbom.read_contents(layout), _wheels(plan, image, name)
        sbom.compare(wheels, image.members, plan.source.version, contents)
        digest = layout.descriptor()["digest"]
        version = plan.source.version
        arguments = (image.repository, version, digest, wheels, image.members, contents)
        bill = sbom.bill_of_materials(*arguments)
        path = plan.folder / f"{image.name}-{name.replace('/', '-')}.cdx.json"
        path.write_text(json.dumps(bill, indent=1))
        made.bills[image.name, name] = path


def package_chart(plan: Plan, made: Made) -> None:
    """Package the chart with the digests of the images."""
    engine = made.indexes.get("engine") or made.indexes.get("engine-cpu")
    indexes = {"image": made.indexes.get("operator"), "engine.image": engine}
    values: dict[str, str] = {}
    for key, index in indexes.items():
        if index:
            values[f"{key}.registry"] = plan.registry.address
            values[f"{key}.digest"] = index.index_digest()
    made.package = chart.package(plan.source.folder, values, plan.registry.helm, plan.folder)


def push_images(plan: Plan, made: Made) -> None:
    """Push images by digest: no name leads to them yet."""
    for image in plan.images:
        layout = made.indexes[image.name]
        made.references[image.name] = plan.registry.push_image(layout, image.repository)


def sign_images(plan: Plan, made: Made) -> None:
    """Sign each index, and attach each image's bill of materials."""
    for reference in made.references.values():
        plan.registry.sign(reference)
    for image, name in plan.builds():
        plan.registry.attest(_manifest(plan, made, image, name), made.bills[image.name, name])


def publish_source(plan: Plan, _made: Made) -> None:
    """Push the release's commit and its tag."""
    plan.source.push(plan.branch)


def publish_chart(plan: Plan, made: Made) -> None:
    """Push and sign the chart, which names the images by digest."""
    assert made.package is not None
    made.chart_reference = plan.registry.push_chart(made.package)
    plan.registry.sign(made.chart_reference)


def tag_images(plan: Plan, made: Made) -> None:
    """Give the images their tags."""
    for image in plan.images:
        plan.registry.tag_image(made.references[image.name], image.tag(plan.source.version))


def notes(plan: Plan, made: Made) -> None:
    """Write the release's notes."""
    references = {image.name: made.references[image.name] for image in plan.images}
    manifests = {
        f"{image.name} {name}": _manifest(plan, made, image, name) for image, name in plan.builds()
    }
    arguments = (plan.source, plan.registry, references, manifests, made.chart_reference)
    (plan.folder / "notes.md").write_text(write_notes(*arguments))


_INVISIBLE = "nothing has a name yet: images lie in the registry by digest alone; run it again"
_TAGGED = "the commit and its tag are pushed; run it again, it continues from the tag"
STEPS = (
    Step("find a wheel for every platform", check_wheels),
    Step("check that the version is new", check_unpublished),
    Step("build images", build_images),
    Step("write bills of materials", write_bills),
    Step("package the chart", package_chart),
    Step("push images", push_images, _INVISIBLE),
    Step("sign images", sign_images, _INVISIBLE),
    Step("publish the source", publish_source, _INVISIBLE),
    Step("publish the chart", publish_chart, _TAGGED),
    Step("tag images", tag_images, "the chart is published and works; tag by hand with crane"),
    Step("write notes", notes, "everything is published; only notes.md is missing"),
)


def run_steps(plan: Plan, report: Callable[[str], None]) -> Made:
    """Run all steps in order.

    Raises:
        ReleaseError: from the step that fails, with its name and what is published.
    """
    made = Made()
    for number, step in enumerate(STEPS, 1):
        started = time.monotonic()
        try:
            step.run(plan, made)
        except ReleaseError as error:
            message = f"step {number} of {len(STEPS)}, {step.name}: {error}"
            raise ReleaseError(f"{message}\n{step.after_failure}") from error
        report(f"  {number:2} {step.name:<34} {time.monotonic() - started:7.1f} s")
    return made


def _manifest(plan: Plan, made: Made, image: ReleasedImage, name: str) -> str:
    digest = made.layouts[image.name][name].descriptor()["digest"]
    return plan.registry.reference(image.repository, digest)


def _wheels(plan: Plan, image: ReleasedImage, name: str) -> list[LockedWheel]:
    return locked_wheels(plan.source.folder, image.package, image.extras, PLATFORMS[name])
