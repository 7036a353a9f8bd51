"""A clock that stands still, pods as a kubelet reports them, and text as a terminal shows it."""

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console

from specdecode_api import names

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
CREATED = "2026-11-21T11:00:00Z"


@pytest.fixture
def now():
    return NOW


@pytest.fixture
def paint():
    """Draw something as text of a fixed width, without colours and without spaces at line ends."""

    def draw(what, width=110):
        written = io.StringIO()
        Console(file=written, width=width, highlight=False).print(what)
        return "\n".join(line.rstrip() for line in written.getvalue().splitlines()) + "\n"

    return draw


@pytest.fixture
def pod():
    """An engine pod in a given state."""

    def make(name="chat-1", config="v1-new", **status):
        return {
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"uid-{name}",
                "creationTimestamp": CREATED,
                "labels": {names.LABEL_DEPLOYMENT: "chat"},
                "annotations": {names.ANNOTATION_CONFIG_HASH: config},
            },
            "spec": {
                "nodeName": "node-1",
                "containers": [
                    {"name": "engine", "ports": [{"name": "management", "containerPort": 8001}]}
                ],
            },
            "status": status,
        }

    return make


@pytest.fixture
def states():
    """Pod statuses by what they are called."""
    ended = {"exitCode": 2, "message": "no checkpoint in /models/target", "reason": "Error"}
    return {
        "Ready": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [_engine({"running": {}}, ready=True, started=True)],
        },
        "Running": {
            "phase": "Running",
            "containerStatuses": [_engine({"running": {}}, started=True)],
        },
        "Starting": {"phase": "Running", "containerStatuses": [_engine({"running": {}})]},
        "CrashLoopBackOff": {
            "phase": "Running",
            "containerStatuses": [
                _engine({"waiting": {"reason": "CrashLoopBackOff"}}, restartCount=4)
                | {"lastState": {"terminated": ended}}
            ],
        },
        "Unschedulable": {
            "phase": "Pending",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
                }
            ],
        },
        "Pending": {"phase": "Pending"},
        "Unknown": {},
    }


def _engine(state, **more):
    return {"name": "engine", "state": state, "ready": False, "restartCount": 0, **more}
