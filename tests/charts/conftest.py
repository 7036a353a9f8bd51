"""Helm from the local tools, and a real API server to install into."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "specdecode"
NAMESPACE = "specdecode-system"


@pytest.fixture(scope="session")
def plane(tmp_path_factory):
    """A private API server; where programs are missing they are built, in CI they must be there."""
    cluster = str(ROOT / "cluster")
    if cluster not in sys.path:
        sys.path.insert(0, cluster)
    from localnode.controlplane import ApiServer
    from localnode.paths import Paths
    from localnode.tools import missing_programs

    missing = missing_programs(Paths.from_environment())
    if missing and os.environ.get("CI"):
        pytest.fail(f"run `make cluster-tools` first: {[tool.name for tool in missing]} missing")
    with ApiServer.start(tmp_path_factory.mktemp("plane")) as server:
        yield server


@pytest.fixture(scope="session")
def run(plane):
    """Run helm or kubectl as the administrator of the private API server."""

    def call(program, *words, check=True, text=None):
        command = [plane.programs / program, *map(str, words)]
        environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig)}
        ran = subprocess.run(
            command, capture_output=True, text=True, input=text, env=environment, check=False
        )
        assert not check or ran.returncode == 0, ran.stdout + ran.stderr
        return ran

    return call


@pytest.fixture(scope="session")
def template(run):
    """Render the chart with a file of values or with flags."""
    rendered = {}

    def render(*flags):
        if flags not in rendered:
            ran = run("helm", "template", "release", CHART, "--namespace", NAMESPACE, *flags)
            rendered[flags] = [each for each in yaml.safe_load_all(ran.stdout) if each]
        return rendered[flags]

    return render


@pytest.fixture(scope="session")
def schemas(run, tmp_path_factory):
    """The API server's own types as a folder of JSON schemas that allow no unknown field."""
    folder = tmp_path_factory.mktemp("schemas")
    document = json.loads(run("kubectl", "get", "--raw", "/openapi/v2").stdout)
    definitions = document["definitions"]
    for name, schema in definitions.items():
        # The schema of schemas is open by nature; so is whatever lists no fields.
        if "properties" in schema and ".JSONSchemaProps" not in name:
            schema["additionalProperties"] = False
    _accept_numbers_or_text(definitions)
    (folder / "all.json").write_text(json.dumps({"definitions": definitions}))
    for name, schema in definitions.items():
        for kind in schema.get("x-kubernetes-group-version-kind", ()):
            group = kind["group"].split(".")[0]
            parts = (kind["kind"], group, kind["version"]) if group else (kind["kind"], "v1")
            file = folder / ("-".join(parts).lower() + ".json")
            file.write_text(json.dumps({"$ref": f"all.json#/definitions/{name}"}))
    return folder


def _accept_numbers_or_text(definitions):
    """OpenAPI calls them strings with a format; a JSON schema has to say what they may be."""
    for name in (
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
        "io.k8s.apimachinery.pkg.api.resource.Quantity",
    ):
        definitions[name] = {"type": ["string", "number"]}


@pytest.fixture(scope="session")
def promtool():
    """Run promtool from the local tools."""
    cluster = str(ROOT / "cluster")
    if cluster not in sys.path:
        sys.path.insert(0, cluster)
    from localnode.paths import Paths
    from localnode.tools import install_more, missing_programs
    from localnode.versions import CHECKS

    paths = Paths.from_environment()
    if missing_programs(paths, CHECKS) and os.environ.get("CI"):
        pytest.fail("run `make cluster-tools` first: promtool is missing")
    program = install_more(paths, CHECKS) / "promtool"

    def call(*words):
        command = [program, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return call
