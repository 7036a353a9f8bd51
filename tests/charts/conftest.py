"""Helm from the local tools, and a real API server to install into."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "specdecode"
DEFINITION = ROOT / "crds" / "specdecode.io_specdecodedeployments.yaml"
NAMESPACE = "specdecode-system"
REFERENCE = re.compile(r'"#/definitions/([^"]+)"')

CONTROLLERS = ("clusterrole-aggregation-controller", "garbage-collector-controller")


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
    with ApiServer.start(tmp_path_factory.mktemp("plane"), controllers=CONTROLLERS) as server:
        yield server


@pytest.fixture(scope="session")
def more_programs(plane):
    """Folder of programs that the node does not need: the tools of a tuple of `versions`."""
    from localnode.paths import Paths
    from localnode.tools import install_more, missing_programs

    def installed(tools):
        paths = Paths.from_environment()
        missing = missing_programs(paths, tools)
        if missing and os.environ.get("CI"):
            names = [tool.name for tool in missing]
            pytest.fail(f"run `make cluster-tools` first: {names} missing")
        return install_more(paths, tools)

    return installed


@pytest.fixture(scope="session")
def helm4(more_programs):
    """The program of Helm's newer major version; the node uses the older one."""
    from localnode.versions import CHARTS

    return more_programs(CHARTS) / "helm4"


@pytest.fixture(scope="session", params=["3", "4"], ids=["helm3", "helm4"])
def helm(request, plane, helm4):
    """The program of each major version of Helm; what is tested with it, is with both."""
    return plane.programs / "helm" if request.param == "3" else helm4


@pytest.fixture(scope="session")
def run(plane):
    """Run helm (its path), kubectl or kubeconform as the administrator of the API server."""

    def call(program, *words, check=True, text=None):
        folder = plane.programs if isinstance(program, str) else Path()
        command = [folder / program, *map(str, words)]
        environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig)}
        ran = subprocess.run(
            command, capture_output=True, text=True, input=text, env=environment, check=False
        )
        assert not check or ran.returncode == 0, ran.stdout + ran.stderr
        return ran

    return call


@pytest.fixture(scope="session")
def template(run):
    """Render the chart with a file of values or with flags; each call answers with a new copy.

    PyYAML's own reader would take longer than Helm, and copies are made faster of JSON.
    """
    rendered = {}

    def render(*flags, program="helm"):
        if (program, flags) not in rendered:
            ran = run(program, "template", "release", CHART, "--namespace", NAMESPACE, *flags)
            manifests = [each for each in yaml.load_all(ran.stdout, yaml.CSafeLoader) if each]
            rendered[program, flags] = json.dumps(manifests)
        return json.loads(rendered[program, flags])

    return render


@pytest.fixture(scope="session")
def established(run):
    """Wait until the definition is established; `kubectl wait` fails while it has no status."""

    def wait():
        deadline = time.monotonic() + 60
        query = "jsonpath={.status.conditions[?(@.type=='Established')].status}"
        words = ("get", "crd/specdecodedeployments.specdecode.io", "-o", query)
        while run("kubectl", *words, check=False).stdout != "True":
            assert time.monotonic() < deadline, "the definition is not established after 60 s"
            time.sleep(0.1)

    return wait


@pytest.fixture(scope="session")
def definition(run, established):
    """The definition is served; tests of releases take it away again, and come later."""
    run("kubectl", "apply", "--server-side", "-f", DEFINITION)
    established()


@pytest.fixture(scope="session")
def schemas(run, definition, tmp_path_factory):
    """The API server's types, ours among them, as JSON schemas that allow no unknown field."""
    folder = tmp_path_factory.mktemp("schemas")
    definitions = _published(run)
    for name, schema in definitions.items():
        if ".JSONSchemaProps" not in name:  # the schema of schemas is open by nature
            _close(schema)
    _accept_numbers_or_text(definitions)
    for name, schema in definitions.items():
        for kind in schema.get("x-kubernetes-group-version-kind", ()):
            group = kind["group"].split(".")[0]
            parts = (kind["kind"], group, kind["version"]) if group else (kind["kind"], "v1")
            file = folder / ("-".join(parts).lower() + ".json")
            inner = {each: definitions[each] for each in _reached(definitions, name)}
            file.write_text(json.dumps({"$ref": f"#/definitions/{name}", "definitions": inner}))
    return folder


def _published(run):
    """The published types, once ours is among them."""
    deadline = time.monotonic() + 60
    while True:
        text = run("kubectl", "get", "--raw", "/openapi/v2").stdout
        definitions = json.loads(text)["definitions"]
        if any(name.endswith(".SpecDecodeDeployment") for name in definitions):
            return definitions
        assert time.monotonic() < deadline, "our type is not published after 60 s"
        time.sleep(0.2)


def _reached(definitions, name):
    """Names of the definitions that one needs, its own among them."""
    reached, waiting = set(), {name}
    while waiting:
        found = waiting.pop()
        reached.add(found)
        waiting |= set(REFERENCE.findall(json.dumps(definitions[found]))) - reached
    return reached


def _close(schema):
    """Allow no field that is not listed, at any depth; what lists no fields stays open."""
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema["additionalProperties"] = False
    inner = [*schema.get("properties", {}).values(), schema.get("items")]
    for each in [*inner, schema.get("additionalProperties")]:
        if isinstance(each, dict):
            _close(each)


def _accept_numbers_or_text(definitions):
    """OpenAPI declares them as strings with a format; a JSON schema has to list their types."""
    for name in (
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
        "io.k8s.apimachinery.pkg.api.resource.Quantity",
    ):
        definitions[name] = {"type": ["string", "number"]}


@pytest.fixture(scope="session")
def promtool(more_programs):
    """Run promtool from the local tools."""
    from localnode.versions import CHECKS

    def call(*words):
        command = [more_programs(CHECKS) / "promtool", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return call
