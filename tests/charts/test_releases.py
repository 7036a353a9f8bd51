"""Releases on a real API server with Helm 3 and 4: install, upgrade, uninstall, from a registry."""

import asyncio
import json
import re
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from specdecode_operator import owned
from specdecode_operator.cluster.cluster import connect
from specdecode_operator.cluster.metrics import Metrics
from specdecode_operator.cluster.served_crd import ServedCrd
from specdecode_operator.commands.check import check
from specdecode_operator.objects.resource import parse

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "specdecode"
OLD = Path(__file__).resolve().parent / "fixtures" / "specdecode-0.1.0.tgz"
DEFINITION = "crd/specdecodedeployments.specdecode.io"
SYSTEM = ("--namespace", "specdecode-system")
DEPLOYMENT = ("get", "deployment", "release-specdecode-operator", "-o", "yaml", *SYSTEM)

pytestmark = pytest.mark.apiserver


def resource(name, **spec):
    return {
        "apiVersion": "specdecode.io/v1alpha1",
        "kind": "SpecDecodeDeployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"model": {"uri": "pvc://models/target"}, "engine": {"device": "CPU"}, **spec},
    }


@pytest.fixture
def apply(run):
    def write(manifest, **options):
        return run("kubectl", "apply", "-f", "-", text=json.dumps(manifest), **options)

    return write


@pytest.fixture
def stored(run):
    """A resource as it is stored."""
    return lambda name: json.loads(run("kubectl", "get", "sdd", name, "-o", "json").stdout)


@pytest.fixture
def nothing_installed(run, helm):
    """No definition, so no resources, and no release; before the test, and after."""

    def clear():
        run(helm, "uninstall", "release", *SYSTEM, "--ignore-not-found")
        run("kubectl", "delete", DEFINITION, "--ignore-not-found", "--wait")

    clear()
    yield
    clear()


@pytest.fixture
def lacking(plane):
    """What the operator finds lacking in the served definition."""

    async def look():
        metrics, definition = Metrics("test"), ServedCrd()
        async with connect(str(plane.kubeconfig), metrics, 30) as cluster:
            await definition.check(cluster, metrics)
        return definition.served is not None, definition.lacking

    def ask(is_right):
        deadline = time.monotonic() + 60
        while True:
            is_served, found = asyncio.run(look())
            if is_served and is_right(found):
                return found
            assert time.monotonic() < deadline, f"after 60 s: {is_served}, {found}"
            time.sleep(0.2)

    return ask


@pytest.fixture
def helm_4(more_programs):
    from localnode.versions import CHARTS

    return more_programs(CHARTS) / "helm4"


def test_both_are_what_they_are_called(run, helm, request):
    major = request.node.callspec.id.removeprefix("helm")
    assert run(helm, "version", "--short").stdout.startswith(f"v{major}.")


def test_install_upgrade_and_uninstall(run, helm, nothing_installed, established):
    run(helm, "install", "release", CHART, *SYSTEM, "--create-namespace")
    established()
    run("kubectl", "apply", "-f", ROOT / "examples" / "specdecode.yaml")
    run(helm, "upgrade", "release", CHART, *SYSTEM, "--set", "operator.workers=4")
    assert "--workers=4" in run("kubectl", *DEPLOYMENT).stdout
    run(helm, "rollback", "release", "1", *SYSTEM)
    assert "--workers=8" in run("kubectl", *DEPLOYMENT).stdout
    run(helm, "uninstall", "release", *SYSTEM)
    assert run("kubectl", *DEPLOYMENT, check=False).returncode != 0
    assert run("kubectl", "get", "sdd", "chat").returncode == 0, "resources outlive the release"
    run(helm, "install", "release", CHART, *SYSTEM)
    run(helm, "uninstall", "release", *SYSTEM)


@pytest.fixture
def upgraded_with(request, helm, helm_4):
    """The one that installed, or Helm 4 where Helm 3 did."""
    return helm_4 if request.param == "by 4" else helm


@pytest.mark.parametrize("upgraded_with", ["by the same", "by 4"], indirect=True)
def test_an_upgrade_from_the_first_chart_keeps_resources_and_brings_new_fields(
    upgraded_with, run, helm, nothing_installed, established, apply, stored, lacking, plane
):
    run(helm, "install", "release", OLD, *SYSTEM, "--create-namespace")
    established()
    speculation = {
        "algorithm": "EAGLE3",
        "draft": {"uri": "pvc://models/eagle3"},
        "numSteps": 3,
        "topk": 1,
    }
    apply(resource("plain"))
    apply(resource("whole", replicas=2, pageSize=32, speculation=speculation))
    new = {"download": {"cacheClaim": "models"}}
    assert 'unknown field "spec.download"' in apply(resource("new", **new), check=False).stderr
    found = lacking(lambda each: each != ())
    assert {"spec.download", "status.models"} <= set(found)
    before = {name: stored(name) for name in ("plain", "whole")}

    run(upgraded_with, "upgrade", "release", CHART, *SYSTEM)
    assert lacking(lambda each: each == ()) == ()
    for name, old in before.items():
        now = stored(name)
        assert now["metadata"] == old["metadata"], "not even its version has changed"
        assert _holds(now["spec"], old["spec"]), "only defaults of new fields may be added"
        assert _children(now) == _children(old), "no pod is replaced"
    for name in before:
        run("kubectl", "annotate", "sdd", name, "example.com/note=1")
        after = stored(name)
        assert _holds(after["spec"], before[name]["spec"])
        assert after["metadata"]["generation"] == before[name]["metadata"]["generation"]
    apply(resource("new", **new))
    assert stored("new")["spec"]["download"]["cacheClaim"] == "models"
    findings = asyncio.run(check(str(plane.kubeconfig), "default", None))
    assert [finding.problem for finding in findings] == [None] * len(findings)

    run(upgraded_with, "uninstall", "release", *SYSTEM)
    assert stored("whole")["metadata"]["uid"] == before["whole"]["metadata"]["uid"]
    assert stored("new")["spec"]["download"]["cacheClaim"] == "models", "user data stays"


def _holds(whole, part):
    """Whether all of `part` is in `whole`, at any depth."""
    if isinstance(part, dict):
        return all(name in whole and _holds(whole[name], inner) for name, inner in part.items())
    return whole == part


def _children(manifest):
    return owned.build(parse(manifest), "specdecode-engine:test").children


def test_the_definition_goes_with_the_release_only_if_asked(
    run, helm, nothing_installed, established
):
    flags = ("--set", "crds.keep=false")
    run(helm, "install", "release", CHART, *SYSTEM, "--create-namespace", *flags)
    established()
    run(helm, "uninstall", "release", *SYSTEM)
    run("kubectl", "wait", "--for=delete", DEFINITION, "--timeout=300s")


def test_the_built_in_roles_get_what_their_names_promise(run, helm, nothing_installed, established):
    run(helm, "install", "release", CHART, *SYSTEM, "--create-namespace")
    established()
    allowed = {
        "view": {"get", "list", "watch"},
        "edit": {"get", "list", "watch", "create", "delete", "patch", "update"},
        "admin": {
            "get",
            "list",
            "watch",
            "create",
            "delete",
            "patch",
            "update",
            "deletecollection",
        },
    }
    verbs = sorted(allowed["admin"])
    for role in allowed:
        binding = (
            "create",
            "rolebinding",
            f"{role}-one",
            f"--clusterrole={role}",
            f"--user={role}",
        )
        run("kubectl", *binding, "-n", "default", check=False)
    for role, expected in allowed.items():
        deadline = time.monotonic() + 60
        while True:  # the control plane gathers them a moment later
            can = {verb for verb in verbs if _can(run, role, verb, "sdd")}
            if can == expected:
                break
            assert time.monotonic() < deadline, f"{role}: {can}"
        assert _can(run, role, "patch", "sdd/status") == (role == "admin")
        assert _can(run, role, "update", "sdd/scale") == (role != "view")
    run(helm, "uninstall", "release", *SYSTEM)


def _can(run, user, verb, what):
    name, _, sub = what.partition("/")
    words = ("auth", "can-i", verb, name, "--as", user, "-n", "default")
    ran = run("kubectl", *words, *(("--subresource", sub) if sub else ()), check=False)
    return ran.stdout.strip() == "yes"


@pytest.fixture(scope="module")
def registry(plane, more_programs, tmp_path_factory):
    """Address of a registry of OCI artifacts on this machine."""
    from localnode.versions import CHARTS

    log = tmp_path_factory.mktemp("registry") / "log"
    with log.open("w") as out:
        program = more_programs(CHARTS) / "registry"
        process = subprocess.Popen([program, "-port", "0"], stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 30
        while not (found := re.search(r"serving on port (\d+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield f"localhost:{found[1]}"
    finally:
        process.terminate()
        process.wait()


def test_the_chart_goes_through_a_registry(run, helm, registry, template, tmp_path, plane):
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    run(helm, "package", CHART, "--destination", tmp_path)
    package = tmp_path / f"specdecode-{version}.tgz"
    address = f"oci://{registry}/charts-{Path(helm).name}"
    pushed = run(helm, "push", package, address, "--plain-http")
    (digest,) = set(re.findall(r"sha256:[0-9a-f]{64}", pushed.stdout + pushed.stderr))
    where = (f"{address}/specdecode", "--version", version, "--plain-http")
    (tmp_path / "pulled").mkdir()
    run(helm, "pull", *where, "--destination", tmp_path / "pulled")
    assert (tmp_path / "pulled" / package.name).read_bytes() == package.read_bytes()
    ran = run(helm, "template", "release", *where, *SYSTEM)
    assert [each for each in yaml.safe_load_all(ran.stdout) if each] == template()
    pinned = f"{address}/specdecode@{digest}"
    ran = run(helm, "show", "chart", pinned, "--plain-http")
    assert yaml.safe_load(ran.stdout)["version"] == version


def test_the_package_holds_what_it_needs_and_no_more(run, helm, tmp_path):
    run(helm, "package", CHART, "--destination", tmp_path)
    (package,) = tmp_path.glob("*.tgz")
    listed = subprocess.run(["tar", "tzf", package], check=True, capture_output=True, text=True)
    names = {name.removeprefix("specdecode/") for name in listed.stdout.split()}
    folders = {name.split("/")[0] for name in names}
    assert folders == {
        "Chart.yaml", "README.md", "files", "templates", "values.schema.json", "values.yaml",
        ".helmignore",
    }  # fmt: skip
    assert package.stat().st_size < 200_000
