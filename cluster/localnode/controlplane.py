"""Starts a control plane: etcd, an API server and what runs on them; the node's, or a private one.

    with ApiServer.start(tmp_path) as server:
        subprocess.run([server.kubectl, "--kubeconfig", server.kubeconfig, "get", "namespaces"])

A private one is for a test session: on a free port, RBAC on, controllers only if asked for. It
cannot outlive the process that started it, however that process ends.
"""

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from localnode import flags, processes
from localnode.apiclient import ApiClient
from localnode.kubeconfig import write_kubeconfig
from localnode.launch import Launcher
from localnode.network import SERVICE_ADDRESS
from localnode.paths import Paths, fast_directory
from localnode.pki import Authority, Identity, TokenKeys
from localnode.processes import Process
from localnode.tools import install_tools, programs

_LOOPBACK = "127.0.0.1"
_SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_DATA_PREFIX = "specdecode-etcd-"  # followed by the id of the process that owns it
ADMINS = "system:masters"


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Where one control plane listens, and how its parts are started."""

    launcher: Launcher
    programs: Path
    authority: Authority
    folder: Path  # kubeconfig files
    address: str
    port: int
    etcd_port: int

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.port}"

    def start_api_server(self, data: Path, extra_flags: Sequence[str]) -> None:
        """Start etcd and the API server and wait until it answers every kind of request."""
        names = (self.address, _LOOPBACK, SERVICE_ADDRESS, *_SERVER_NAMES)
        serving = self.authority.issue("apiserver", "kube-apiserver", addresses=names)
        etcd = flags.EtcdSettings(
            program=self.programs / "etcd",
            data=data,
            address=self.address,
            port=self.etcd_port,
            authority=self.authority,
            identity=self.authority.issue("etcd", "etcd", addresses=names),
        )
        api_server = flags.ApiServerSettings(
            program=self.programs / "kube-apiserver",
            etcd=etcd,
            address=self.address,
            port=self.port,
            authority=self.authority,
            serving=serving,
            token_keys=TokenKeys.open(self.authority.folder),
        )
        self.launcher.launch("etcd", flags.etcd_command(etcd))
        command = [*flags.apiserver_command(api_server), *extra_flags]
        process = self.launcher.launch("kube-apiserver", command)
        self.launcher.wait(process, self.admin_client().is_ready, "answer from the API server")

    def start_controllers(self, extra_flags: Sequence[str]) -> None:
        """Start the controller manager."""
        command = flags.controller_manager_command(
            self.programs / "kube-controller-manager",
            self.kubeconfig_for("controller-manager", "system:kube-controller-manager"),
            self.authority,
            TokenKeys.open(self.authority.folder),
            self.address,
        )
        self.launcher.launch("kube-controller-manager", [*command, *extra_flags])

    def start_scheduler(self) -> None:
        """Start the scheduler."""
        kubeconfig = self.kubeconfig_for("scheduler", "system:kube-scheduler")
        program = self.programs / "kube-scheduler"
        command = flags.scheduler_command(program, kubeconfig, self.address)
        self.launcher.launch("kube-scheduler", command)

    def kubeconfig_for(self, file_name: str, user: str, groups: tuple[str, ...] = ()) -> Path:
        """Write the file by which a part of the cluster reaches the API server under its name."""
        identity = self.authority.issue(file_name, user, organizations=groups)
        path = self.folder / f"{file_name}.kubeconfig"
        return write_kubeconfig(path, self.url, self.authority, identity)

    def admin_client(self) -> ApiClient:
        """Ask as an administrator, with one identity for all who ask at the same time."""
        folder = self.authority.folder
        identity = Identity(folder / "admin-client.crt", folder / "admin-client.key")
        if not identity.certificate.exists():
            self.authority.issue("admin-client", "admin", organizations=(ADMINS,))
        return ApiClient.connect(self.address, self.port, str(self.authority.bundle), identity)


@dataclass(frozen=True, slots=True)
class ApiServer:
    """A private API server, alive while the body of `with ApiServer.start(...)` runs."""

    url: str
    kubeconfig: Path  # an administrator's
    authority_file: Path
    admin_token: str
    programs: Path  # kubectl, helm and the rest
    plane: ControlPlane

    @staticmethod
    @contextlib.contextmanager
    def start(
        folder: Path, *, controllers: Sequence[str] = (), feature_gates: Sequence[str] = ()
    ) -> Iterator["ApiServer"]:
        """Start etcd, an API server and the controllers of these (long) names; end them after.

        The feature gates are turned on in the API server.

        Files and logs go to the folder. Programs that are missing are built first, which takes
        minutes: `localnode tools`.
        """
        paths = Paths.from_environment()
        install_tools(paths)
        started: list[Process] = []
        memory = fast_directory(folder)
        _drop_orphans(memory)
        data = Path(tempfile.mkdtemp(prefix=f"{_DATA_PREFIX}{os.getpid()}-", dir=memory))
        try:
            plane = _private_plane(folder, programs(paths), Launcher.for_us(folder, started))
            token = _start_private(plane, data, feature_gates)
            if controllers:
                names = ",".join(controllers)
                plane.start_controllers([f"--controllers={names}", "--secure-port=0"])
            kubeconfig = plane.kubeconfig_for("admin", "admin", (ADMINS,))
            bundle = plane.authority.bundle
            yield ApiServer(plane.url, kubeconfig, bundle, token, plane.programs, plane)
        finally:
            processes.stop(started)
            shutil.rmtree(data, ignore_errors=True)


def _private_plane(folder: Path, programs_folder: Path, launcher: Launcher) -> ControlPlane:
    port, etcd_port, *_ = _free_ports(2)
    return ControlPlane(
        launcher=launcher,
        programs=programs_folder,
        authority=Authority.open(folder / "pki"),
        folder=folder,
        address=_LOOPBACK,
        port=port,
        etcd_port=etcd_port,
    )


def _start_private(plane: ControlPlane, data: Path, feature_gates: Sequence[str]) -> str:
    token = secrets.token_urlsafe(24)
    token_file = plane.folder / "tokens.csv"
    token_file.write_text(f"{token},admin,admin,{ADMINS}\n")
    gates = [f"--feature-gates={gate}=true" for gate in feature_gates]
    plane.start_api_server(data, [*flags.apiserver_alone_flags(token_file), *gates])
    return token


def _drop_orphans(memory: Path) -> None:
    """Delete the data of those who were killed before they could."""
    for folder in memory.glob(f"{_DATA_PREFIX}*"):
        owner = folder.name.removeprefix(_DATA_PREFIX).split("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    """Name ports that are free now; held together while looking, so that no two are equal."""
    with contextlib.ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((_LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]
