"""Small requests to an API server over HTTPS, without the cost of starting kubectl."""

import http.client
import json
import ssl
from dataclasses import dataclass
from typing import Any

from localnode.pki import Identity


@dataclass(frozen=True, slots=True)
class ApiClient:
    """Where the server is and as whom to ask."""

    host: str
    port: int
    tls: ssl.SSLContext

    @staticmethod
    def connect(host: str, port: int, authority_file: str, identity: Identity) -> "ApiClient":
        """Trust this authority and show this identity."""
        tls = ssl.create_default_context(cafile=authority_file)
        tls.load_cert_chain(identity.certificate, identity.key)
        return ApiClient(host, port, tls)

    def get(self, path: str) -> bytes | None:
        """Return the body of a successful answer; None when there is no such answer."""
        connection = http.client.HTTPSConnection(self.host, self.port, context=self.tls, timeout=2)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.read() if answer.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def is_ready(self) -> bool:
        """Whether the server takes every kind of request."""
        return self.get("/readyz") is not None

    def is_node_ready(self, name: str) -> bool:
        """Whether the node reports Ready and accepts pods."""
        body = self.get(f"/api/v1/nodes/{name}")
        return body is not None and accepts_pods(json.loads(body))


def accepts_pods(node: dict[str, Any]) -> bool:
    """Read the conditions and taints of a node object."""
    conditions = {c["type"]: c["status"] for c in node.get("status", {}).get("conditions", [])}
    return conditions.get("Ready") == "True" and not node.get("spec", {}).get("taints")
