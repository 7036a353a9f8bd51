"""The API of custom metrics, as Prometheus Adapter serves it, registered with an API server.

The values are played; discovery, proxying and rights are the API server's own.
"""

import base64
import json
import ssl
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from specdecode_operator.objects.kinds import POD, ResourceKind

GROUP, VERSION, METRIC = "custom.metrics.k8s.io", "v1beta2", "specdecode_load"
NAMESPACE, SERVICE_NAME = "default", "custom-metrics"
ROOT = f"/apis/{GROUP}/{VERSION}"
SERVICE = ResourceKind("", "v1", "Service", "services", ())
API_SERVICE = ResourceKind("apiregistration.k8s.io", "v1", "APIService", "apiservices", ())


class CustomMetrics:
    """Answers with a value for each pod that a selector matches; notes the selectors."""

    def __init__(self, api):
        self._api = api
        self.value_of = lambda pod: 0
        """Value of a pod in thousandths."""
        self.selectors = []

    def answer(self, path):
        """Body of the response to a GET; None for what does not exist."""
        parts = urlsplit(path)
        if parts.path == ROOT:
            return self._discovery()
        match unquote(parts.path).removeprefix(ROOT).split("/"):
            case ["", "namespaces", namespace, "pods", "*", metric] if metric == METRIC:
                return self._values(namespace, parse_qs(parts.query)["labelSelector"][0])
        return None

    @staticmethod
    def _discovery():
        resource = {"name": f"pods/{METRIC}", "singularName": "", "namespaced": True}
        resource |= {"kind": "MetricValueList", "verbs": ["get"]}
        head = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}"}
        return head | {"resources": [resource]}

    def _values(self, namespace, selector):
        pods = self._api.items(POD, namespace, selector)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        values = [
            {
                "describedObject": {
                    "kind": "Pod",
                    "apiVersion": "/v1",
                    "namespace": namespace,
                    "name": pod["metadata"]["name"],
                },
                "metric": {"name": METRIC, "selector": None},
                "timestamp": now,
                "windowSeconds": 60,
                "value": f"{self.value_of(pod)}m",
            }
            for pod in pods
        ]
        self.selectors.append(selector)
        head = {"kind": "MetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}}
        return head | {"items": values}


@contextmanager
def serve_custom_metrics(plane, api, until):
    """Serve custom metrics on a port of this machine and register them, while a body runs."""
    metrics = CustomMetrics(api)
    authority = plane.authority
    names = ("localhost", f"{SERVICE_NAME}.{NAMESPACE}.svc")
    identity = authority.issue(SERVICE_NAME, SERVICE_NAME, addresses=names)
    server = ThreadingHTTPServer(("localhost", 0), _handler(metrics))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        _register(api, authority, server.server_port)
        until(lambda: _is_available(api))
        yield metrics
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _register(api, authority, port):
    external = {"type": "ExternalName", "externalName": "localhost"}
    metadata = {"name": SERVICE_NAME, "namespace": NAMESPACE}
    api.create(SERVICE, {"metadata": metadata, "spec": external})
    spec = {
        "group": GROUP,
        "version": VERSION,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "caBundle": base64.b64encode(authority.bundle.read_bytes()).decode(),
        "service": {**metadata, "port": port},
    }
    api.create(API_SERVICE, {"metadata": {"name": f"{VERSION}.{GROUP}"}, "spec": spec})


def _is_available(api):
    status = api.get(API_SERVICE, None, f"{VERSION}.{GROUP}").get("status") or {}
    (available,) = (c for c in status["conditions"] if c["type"] == "Available")
    assert available["status"] == "True", available
    return True


def _handler(metrics):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            found = metrics.answer(self.path)
            body = json.dumps(found or {"kind": "Status", "code": 404}).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    return Handler
