"""Example resources, and manifests as an API server would give them."""

import copy
from pathlib import Path

import pytest
import yaml

from specdecode_api import names
from specdecode_operator import owned
from specdecode_operator.objects import resource

ROOT = Path(__file__).resolve().parents[2]
ENGINE_IMAGE = "specdecode-engine:test"


@pytest.fixture
def example():
    """Read an example as the API server would give it."""

    def read(name="specdecode", **spec):
        text = (ROOT / "examples" / f"{name}.yaml").read_text()
        (manifest,) = (each for each in yaml.safe_load_all(text) if each["kind"] == names.KIND)
        manifest["metadata"] |= {
            "namespace": "default",
            "uid": "uid-1",
            "generation": 1,
            "resourceVersion": "1",
        }
        manifest["spec"] |= copy.deepcopy(spec)
        return manifest

    return read


@pytest.fixture
def build():
    """Build the children of a manifest, as a dict by kind."""

    def by_kind(manifest):
        built = owned.build(resource.parse(manifest), ENGINE_IMAGE)
        return {child["kind"]: copy.deepcopy(child) for child in built.children}

    return by_kind


@pytest.fixture
def config_hash():
    """Config hash of a manifest."""

    def of(manifest):
        return owned.build(resource.parse(manifest), ENGINE_IMAGE).config_hash

    return of


@pytest.fixture
def live():
    """A child as the API server would give it: with a version, a generation and defaults."""

    def as_live(child, **more):
        manifest = copy.deepcopy(child)
        manifest["metadata"] |= {"uid": f"uid-{child['kind']}", "resourceVersion": "5", **more}
        if child["kind"] == "Deployment":
            manifest["metadata"]["generation"] = 1
            template = manifest["spec"]["template"]["spec"]
            template |= {"dnsPolicy": "ClusterFirst", "restartPolicy": "Always"}
            template["containers"][0]["terminationMessagePath"] = "/dev/termination-log"
        return manifest

    return as_live
