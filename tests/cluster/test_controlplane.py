"""A private API server: real authorization, and nothing left of it afterwards."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from localnode import processes, tools
from localnode.controlplane import ApiServer
from localnode.paths import Paths

pytestmark = pytest.mark.apiserver

absent = pytest.fail if os.environ.get("CI") else pytest.skip
"""In CI a missing part is a failure."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    if tools.missing_programs(Paths.from_environment()):
        absent("the programs are not built: `localnode tools`")
    folder = tmp_path_factory.mktemp("apiserver")
    with ApiServer.start(folder, controllers=["garbage-collector-controller"]) as running:
        yield running


def _kubectl(server: ApiServer, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(server.programs / "kubectl"), "--request-timeout=20s", *words]
    return subprocess.run(command, capture_output=True, text=True)


def _as_admin(server: ApiServer, *words: str) -> str:
    done = _kubectl(server, "--kubeconfig", str(server.kubeconfig), *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_token_is_an_administrators(server: ApiServer) -> None:
    access = ["--server", server.url, "--certificate-authority", str(server.authority_file)]
    done = _kubectl(server, *access, "--token", server.admin_token, "auth", "whoami")
    assert "system:masters" in done.stdout


def test_a_service_account_may_nothing_by_itself(server: ApiServer) -> None:
    _as_admin(server, "create", "serviceaccount", "nobody")
    token = _as_admin(server, "create", "token", "nobody").strip()
    access = ["--server", server.url, "--certificate-authority", str(server.authority_file)]
    done = _kubectl(server, *access, "--token", token, "get", "configmaps")
    assert "system:serviceaccount:default:nobody" in done.stderr
    assert "forbidden" in done.stderr


def test_owned_objects_are_collected(server: ApiServer) -> None:
    _as_admin(server, "create", "configmap", "owner")
    uid = _as_admin(server, "get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}")
    _as_admin(server, "create", "configmap", "owned")
    reference = f'{{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":"{uid}"}}'
    patch = f'{{"metadata":{{"ownerReferences":[{reference}]}}}}'
    _as_admin(server, "patch", "configmap", "owned", "--patch", patch)
    _as_admin(server, "delete", "configmap", "owner")
    _as_admin(server, "wait", "--for=delete", "configmap/owned", "--timeout=60s")


def test_nothing_is_left(tmp_path: Path, server: ApiServer) -> None:
    with ApiServer.start(tmp_path) as another:
        assert another.url != server.url
        _as_admin(another, "get", "namespaces")
        running = _processes_of(tmp_path)
        assert len(running) == 2
    assert _processes_of(tmp_path) == []


def _processes_of(folder: Path) -> list[processes.Process]:
    return processes.find(lambda proc: str(folder).encode() in (proc / "cmdline").read_bytes())
