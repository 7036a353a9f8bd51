"""Writes a client's kubeconfig: where the API server is and who the client claims to be.

JSON, which every reader of kubeconfig files takes, because all JSON is YAML.
"""

import base64
import json
import os
from pathlib import Path
from typing import Any

from localnode.pki import Authority, Identity


def write_kubeconfig(
    path: Path, server: str, authority: Authority, identity: Identity, *, name: str = "specdecode"
) -> Path:
    """Write one cluster, one user and one context, everything inside the file itself."""
    cluster = {"server": server, "certificate-authority-data": _embedded(authority.bundle)}
    user = {
        "client-certificate-data": _embedded(identity.certificate),
        "client-key-data": _embedded(identity.key),
    }
    content = _content(name, cluster, user)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        json.dump(content, file, indent=1)
    unfinished.rename(path)
    return path


def token_kubeconfig(server: str, authority_file: Path, token: str) -> dict[str, Any]:
    """Return what such a file holds for somebody who has a token."""
    cluster = {"server": server, "certificate-authority": str(authority_file)}
    return _content("specdecode", cluster, {"token": token})


def _content(name: str, cluster: dict[str, str], user: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def _embedded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
