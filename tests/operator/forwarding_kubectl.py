"""A program for `kubectl port-forward` without a kubelet, with the words of kubectl 1.32.

It connects to the ports of this machine that a file names for pods, and ends as kubectl does: if a
pod is unknown, if the port is in use, and if a connection to the pod fails. The tests of the node
use the real one.
"""

import contextlib
import json
import os
import socket
import sys
import threading
from pathlib import Path

PORTS = "PORTS_OF_PODS"
"""Variable with the path of the file: JSON, names of pods to ports."""


def write_program(folder: Path, ports: dict[str, int]) -> dict[str, str]:
    """Write the program and its file; return the environment in which it is found."""
    folder.mkdir(exist_ok=True)
    program = folder / "kubectl"
    program.write_text(f"#!{sys.executable}\n{Path(__file__).read_text()}")
    program.chmod(0o755)
    file = folder / "ports.json"
    file.write_text(json.dumps(ports))
    return {"PATH": f"{folder}:{os.environ['PATH']}", PORTS: str(file)}


def main() -> None:
    command, pod, ports, *flags = sys.argv[1:]
    name, (local, remote) = pod.removeprefix("pod/"), ports.split(":")
    assert (command, flags[:2], flags[2]) == (
        "port-forward", ["--address", "127.0.0.1"], "--namespace",
    )  # fmt: skip
    assert "SPECDECODE_API_KEY" not in os.environ
    target = json.loads(Path(os.environ[PORTS]).read_text()).get(name)
    if target is None:
        sys.exit(f'Error from server (NotFound): pods "{name}" not found')
    try:
        listener = socket.create_server(("127.0.0.1", int(local or 0)))
    except OSError:
        print(
            f"Unable to listen on port {local}: Listeners failed to create with the following "
            f"errors: [unable to create listener: Error listen tcp4 127.0.0.1:{local}: bind: "
            "address already in use]\nerror: unable to listen on any of the requested ports: "
            f"[{{{local} {remote}}}]",
            file=sys.stderr,
        )
        sys.exit(1)
    port = listener.getsockname()[1]
    print(f"Forwarding from 127.0.0.1:{port} -> {remote}", flush=True)
    while True:
        client, _ = listener.accept()
        print(f"Handling connection for {port}", flush=True)
        try:
            engine = socket.create_connection(("127.0.0.1", target))
        except OSError:
            listener.close()
            client.close()
            sys.exit("error: lost connection to pod")
        for ends in ((client, engine), (engine, client)):
            threading.Thread(target=copy, args=ends, daemon=True).start()


def copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(65536):
            sink.sendall(part)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main()
