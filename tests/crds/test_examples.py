"""Every resource that the repository shows to a user is one that the API server takes."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from specdecode_api import names
from specdecode_api.v1alpha1 import SpecDecodeDeployment

REPOSITORY = Path(__file__).resolve().parents[2]
YAML_BLOCK = re.compile(r"^```ya?ml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def shown_resources() -> dict[str, dict[str, Any]]:
    """Find the whole resources in the examples and in the text files: place to resource."""
    texts = {str(path): path.read_text() for path in REPOSITORY.glob("examples/*.yaml")}
    pages = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")]
    for page in [*pages, *REPOSITORY.glob("charts/*/README.md")]:
        blocks = enumerate(YAML_BLOCK.findall(page.read_text()))
        texts |= {f"{page} block {number}": block for number, block in blocks}
    return {
        f"{place.removeprefix(f'{REPOSITORY}/')} {number}": document
        for place, text in texts.items()
        if f"kind: {names.KIND}" in text
        for number, document in enumerate(yaml.safe_load_all(text))
        if document["kind"] == names.KIND
    }


SHOWN = shown_resources()


def test_there_are_examples():
    assert any(place.startswith("examples/") for place in SHOWN)


@pytest.mark.parametrize("place", SHOWN)
def test_shown_resource_is_taken(place):
    SpecDecodeDeployment.from_resource(SHOWN[place])


@pytest.mark.apiserver
@pytest.mark.parametrize("place", SHOWN)
def test_shown_resource_is_admitted(server, place):
    resource = {**SHOWN[place], "metadata": {**SHOWN[place]["metadata"], "namespace": "default"}}
    answer = server.try_out(resource)
    assert answer.status_code == 201, answer.json()["message"]
