"""Resources by the dozen, and one real API server that knows their definition."""

import os
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from specdecode_api import names
from specdecode_api.schema import custom_resource_definition, trial_definition

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
MODEL = {"uri": "pvc://models/target"}


@dataclass(frozen=True, slots=True)
class Case:
    """A resource and, if it is invalid, the expected error."""

    resource: dict[str, Any]
    field: str = ""
    message: str = ""
    python: str = ""


def read_cases(kind: str) -> dict[str, Case]:
    written = yaml.safe_load((HERE / "resources" / f"{kind}.yaml").read_text())
    return {
        title: Case(
            resource=make_resource(case.get("spec"), case.get("name", "chat")),
            field=case.get("field", ""),
            message=case.get("message", ""),
            python=case.get("python", case.get("message", "")),
        )
        for title, case in written.items()
    }


@pytest.fixture(name="read_cases")
def read_cases_fixture() -> Callable[[str], dict[str, Case]]:
    return read_cases


def make_resource(spec: dict[str, Any], name: str = "chat") -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name},
        "spec": {"model": MODEL, **spec},
    }


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for kind in ("good", "bad"):
        if f"{kind}_case" in metafunc.fixturenames:
            cases = read_cases(kind)
            metafunc.parametrize(f"{kind}_case", list(cases.values()), ids=list(cases))


@dataclass(frozen=True, slots=True)
class Server:
    """Plain requests to an API server that has our definition."""

    client: httpx.Client

    resources = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}"
    trials = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL_TRIAL}"

    def try_out(self, resource: dict[str, Any]) -> httpx.Response:
        """Have a resource admitted, defaults filled in, and thrown away."""
        params = {"dryRun": "All", "fieldValidation": "Strict"}
        return self.client.post(self.resources, params=params, json=resource)

    def create(self, resource: dict[str, Any]) -> httpx.Response:
        return self.client.post(self.resources, json=resource)

    def delete(self, name: str) -> None:
        self.client.delete(f"{self.resources}/{name}").raise_for_status()

    def definition(self) -> dict[str, Any]:
        found = self.client.get(f"{_DEFINITIONS}/{names.PLURAL}.{names.GROUP}").json()
        assert isinstance(found, dict)
        return found


_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with _api_server(tmp_path_factory.mktemp("apiserver")) as api:
        client = httpx.Client(
            base_url=api.url,
            headers={"Authorization": f"Bearer {api.admin_token}"},
            verify=ssl.create_default_context(cafile=str(api.authority_file)),
            timeout=30,
        )
        with client:
            started = Server(client)
            for definition in (custom_resource_definition(), trial_definition()):
                answer = client.post(
                    _DEFINITIONS, params={"fieldValidation": "Strict"}, json=definition
                )
                assert answer.status_code == 201, answer.text
            _wait_until_served(started)
            yield started


def _api_server(folder: Path) -> Any:
    cluster = str(REPOSITORY / "cluster")
    if cluster not in sys.path:
        sys.path.insert(0, cluster)
    from localnode.controlplane import ApiServer
    from localnode.paths import Paths
    from localnode.tools import missing_programs

    missing = missing_programs(Paths.from_environment())
    if missing and os.environ.get("CI"):
        pytest.fail(f"run `make cluster-tools` first: {[tool.name for tool in missing]} missing")
    return ApiServer.start(folder)


def _wait_until_served(server: Server) -> None:
    """Wait for the definition to be established, and to be in what `kubectl explain` reads."""
    deadline = time.monotonic() + 60
    openapi = f"/openapi/v3/apis/{names.API_VERSION}"
    while server.client.get(openapi).status_code != 200:
        assert time.monotonic() < deadline, server.definition()
        time.sleep(0.1)
    for resources in (server.resources, server.trials):
        while server.client.get(resources).status_code != 200:
            assert time.monotonic() < deadline, server.definition()
            time.sleep(0.1)
