"""Errors that `make traffic` reports: wrong statuses, leftovers, lost and changed answers."""

import copy
import dataclasses
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from prometheus_client import generate_latest

from checks.traffic.load import Client, Load, plain_texts
from checks.traffic.questions import QUESTIONS
from checks.traffic.routers import RouterCounts, counts_in, increase, requests_in
from checks.traffic.seen import Seen
from checks.traffic.tally import Tally
from checks.traffic.truth import is_settled, strays, untruths
from checks.traffic.verdict import PATIENCE_S, Outcome, summary
from checks.traffic.witness import Findings
from specdecode_api import names
from specdecode_operator.objects.resource import parse
from specdecode_operator.owned import build, routed
from specdecode_router.engines import EnginePool
from specdecode_router.metrics import RouterMetrics
from specdecode_router.routing.prefix_table import PrefixTable
from specdecode_router.settings import EngineAddress

IMAGE = "engine:1"
OWNED = {"controller": True, "kind": "ReplicaSet", "name": "s", "uid": "set"}


def resource(**status):
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "chat", "namespace": "default", "uid": "u", "generation": 2},
        "spec": {
            "engine": {"device": "CPU"},
            "model": {"uri": "pvc://models/target"},
            "speculation": {"algorithm": "NONE"},
            "replicas": 2,
        },
        "status": status,
    }


def at_rest():
    """Two engines that serve, and a status that reports them."""
    found = resource()
    built = build(parse(found), IMAGE)
    children = [copy.deepcopy(child) for child in built.children]
    for number, child in enumerate(children):
        child["metadata"]["uid"] = f"child-{number}"
    owner = {"controller": True, "kind": "Deployment", "name": "chat", "uid": "child-4"}
    service = {"controller": True, "kind": "Service", "name": "chat", "uid": "child-2"}
    stamp = {names.ANNOTATION_CONFIG_HASH: built.config_hash}
    found["status"] = {
        "observedGeneration": 2,
        "configHash": built.config_hash,
        "replicas": 2,
        "readyReplicas": 2,
        "routableReplicas": 2,
        "updatedReplicas": 2,
        "conditions": [
            {"type": kind, "status": status, "observedGeneration": 2}
            for kind, status in (
                ("Ready", "True"),
                ("Available", "True"),
                ("Progressing", "True"),
                ("Reconciling", "False"),
                ("Stalled", "False"),
                ("Degraded", "False"),
                ("ModelReady", "True"),
                ("ConfigResolved", "True"),
            )
        ],
    }
    pods = tuple(
        {
            "kind": "Pod",
            "metadata": {"name": name, "annotations": stamp, "ownerReferences": [OWNED]},
            "spec": {"nodeName": "node"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
        for name in ("a", "b")
    )
    replica_set = {
        "kind": "ReplicaSet",
        "metadata": {"name": "s", "uid": "set", "ownerReferences": [owner]},
        "spec": {"replicas": 2, "template": {"metadata": {"annotations": stamp}}},
    }
    part = {
        "kind": "EndpointSlice",
        "metadata": {"name": "e", "ownerReferences": [service]},
        "endpoints": [{"conditions": {"ready": True}}] * 2,
    }
    return Seen(found, tuple(children), (replica_set,), pods, (part,))


def test_at_rest_everything_is_true_and_nothing_is_left_over():
    seen = at_rest()
    assert untruths(seen, IMAGE) == ()
    assert strays(seen, IMAGE) == ()
    assert is_settled(seen, IMAGE)


def break_off(seen):
    seen.pods[0]["status"]["conditions"][0]["status"] = "False"


def unroute(seen):
    seen.slices[0]["endpoints"].pop()


def leave(seen):
    seen.pods[0]["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"


def grow(seen):
    seen.resource["metadata"]["generation"] = 3


def edit(seen):
    seen.resource["spec"]["engine"] = {"device": "CPU", "scheduler": {"maxRunningRequests": 8}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (break_off, ("readyReplicas is 2, not 1", "condition Reconciling is 'False', not 'True'")),
        (unroute, ("routableReplicas is 2, not 1",)),
        (leave, ("replicas is 2, not 1", "condition Reconciling is 'False', not 'True'")),
        (grow, ("the status is of generation 2, not 3",)),
        (edit, ("configHash is", "updatedReplicas is 2, not 0")),
    ],
)
def test_a_status_that_is_not_so_is_reported(change, words):
    seen = at_rest()
    change(seen)
    reported = "; ".join(untruths(seen, IMAGE))
    assert all(word in reported for word in words), reported
    assert not is_settled(seen, IMAGE)


def drop_service(seen):
    return seen.children[:2] + seen.children[3:]


def double_boot_file(seen):
    twin = copy.deepcopy(seen.children[1])
    twin["metadata"]["name"] = "chat-v1-former"
    return (*seen.children, twin)


def disown(seen):
    del seen.children[0]["metadata"]["ownerReferences"]
    return seen.children


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop_service, "Service chat is missing"),
        (double_boot_file, "ConfigMap chat-v1-former is one too many"),
        (disown, "ServiceAccount chat has no owner"),
    ],
)
def test_children_that_miss_or_stray_are_reported(change, words):
    seen = at_rest()
    changed = Seen(seen.resource, change(seen), seen.replica_sets, seen.pods, seen.slices)
    assert words in "; ".join(strays(changed, IMAGE))


def test_a_boot_file_stays_as_long_as_a_pod_of_it():
    seen = at_rest()
    seen.pods[0]["metadata"]["annotations"] = {names.ANNOTATION_CONFIG_HASH: "v1-former"}
    changed = Seen(seen.resource, double_boot_file(seen), seen.replica_sets, seen.pods, seen.slices)
    assert strays(changed, IMAGE) == ()


def test_a_pod_of_nobody_is_an_orphan():
    seen = at_rest()
    del seen.pods[1]["metadata"]["ownerReferences"]
    assert strays(seen, IMAGE) == ("Pod b is an orphan",)


def routed_at_rest():
    """The engines of `at_rest` and two routers, to which the Service leads."""
    seen = at_rest()
    seen.resource["spec"]["router"] = {"replicas": 2}
    resource = parse(seen.resource)
    built = build(resource, IMAGE)
    children = copy.deepcopy(routed([*built.children], resource, "router:1", is_serving=True))
    for number, child in enumerate(children):
        child["metadata"]["uid"] = f"child-{number}"
    uids = {(each["kind"], each["metadata"]["name"]): each["metadata"]["uid"] for each in children}
    stamp = {names.ANNOTATION_CONFIG_HASH: built.config_hash}
    seen.resource["status"] |= {
        "configHash": built.config_hash, "router": {"readyReplicas": 2, "isServing": True}
    }  # fmt: skip
    for pod in seen.pods:
        pod["metadata"]["annotations"] = stamp
    (engines,) = seen.replica_sets
    engines["spec"]["template"]["metadata"]["annotations"] = stamp
    engines["metadata"]["ownerReferences"][0]["uid"] = uids["Deployment", "chat"]
    owner = {"controller": True, "kind": "Deployment", "name": "chat-router"}
    owner["uid"] = uids["Deployment", "chat-router"]
    metadata = {"name": "r", "uid": "routers", "ownerReferences": [owner]}
    routers = {"kind": "ReplicaSet", "metadata": metadata}
    pods = tuple(
        {
            "kind": "Pod",
            "metadata": {"name": name, "ownerReferences": [OWNED | {"uid": "routers"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
        for name in ("r1", "r2")
    )
    slices = tuple(
        {
            "kind": "EndpointSlice",
            "metadata": {
                "name": service,
                "labels": {"kubernetes.io/service-name": service},
                "ownerReferences": [OWNED | {"kind": "Service", "uid": uids["Service", service]}],
            },
            "endpoints": [{"conditions": {"ready": True}}] * count,
        }
        for service, count in (("chat-engines", 2), ("chat", 1))
    )
    return Seen(seen.resource, tuple(children), (engines,), seen.pods, slices, (routers,), pods)


def test_routers_are_no_strays_and_their_endpoints_are_not_those_of_engines():
    seen = routed_at_rest()
    assert untruths(seen, IMAGE) == ()
    assert strays(seen, IMAGE) == ()
    assert seen.routable == 2
    assert is_settled(seen, IMAGE)


def lose_router(seen):
    seen.router_pods[0]["status"]["conditions"][0]["status"] = "False"


def switch_back(seen):
    service = next(
        child for child in seen.children
        if (child["kind"], child["metadata"]["name"]) == ("Service", "chat")
    )  # fmt: skip
    service["spec"]["selector"][names.LABEL_COMPONENT] = names.COMPONENT_ENGINE


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lose_router, "router.readyReplicas is 2, not 1"),
        (switch_back, "router.isServing is True, not False"),
    ],
)
def test_a_status_of_routers_that_is_not_so_is_reported(change, words):
    seen = routed_at_rest()
    change(seen)
    assert words in untruths(seen, IMAGE)
    assert not is_settled(seen, IMAGE)


def test_a_missing_role_and_an_orphan_of_routers_are_reported():
    seen = routed_at_rest()
    children = tuple(child for child in seen.children if child["kind"] != "Role")
    changed = dataclasses.replace(seen, children=children, router_sets=())
    found = strays(changed, IMAGE)
    assert "Role chat-router is missing" in found
    assert "Pod r1 is an orphan" in found


def test_counts_of_routers_are_read_from_their_metrics():
    pool = EnginePool(lambda: 0.0)
    address = EngineAddress("10.0.0.1", 8001)
    pool.update({address: ("chat-a", "")})
    metrics = RouterMetrics(pool, PrefixTable())
    metrics.resumed.labels("lost").inc(3)
    metrics.resumed.labels("stalled").inc()
    metrics.unresumable.labels("resume_id").inc()
    metrics.held.inc(2)
    with pool.engines[address].count_request():
        text = generate_latest(metrics.registry).decode()
    assert counts_in(text) == RouterCounts(resumed=4, unresumable=1, held=2)
    assert (requests_in(text, "chat-a"), requests_in(text, "chat-b")) == (1, 0)


def test_a_router_that_started_meanwhile_counts_from_zero():
    before = {"a": RouterCounts(resumed=5, held=1), "gone": RouterCounts(resumed=7)}
    after = {"a": RouterCounts(resumed=8, held=1), "new": RouterCounts(resumed=2, unresumable=1)}
    assert increase(before, after) == RouterCounts(resumed=5, unresumable=1, held=0)


def test_a_verdict_on_routers_counts_what_they_resumed():
    tally = Tally(answered=3, cut_by_kill=2, kills=1, kills_with_streams=1)
    down = Findings(fewest_ready=0, may_be_without=True)
    reported = summary([Outcome("kill", 1.0, tally, down, RouterCounts(resumed=2, held=4))])
    assert reported["passed"] is True
    wanted = {
        "sent": 3, "failed": 0, "wrong": 0, "resumed": 2, "kills": 1, "kills_with_streams": 1,
        "held": 4, "unresumable": 0, "cut_by_router_kill": 2,
    }  # fmt: skip
    assert wanted.items() <= reported.items()
    cut = Outcome("roll", 1.0, tally, down, RouterCounts(unresumable=1))
    assert cut.faults() == ["1 streams could not be continued"]


def test_a_verdict_names_what_failed_and_forgives_a_short_lag():
    tally = Tally(answered=1, wrong_text=1)
    tally.fail("refused")
    late = Findings(untrue={"short": PATIENCE_S - 1, "long": PATIENCE_S + 1}, fewest_ready=1)
    reported = summary([Outcome("drain", 3.0, tally, late)])
    assert reported["passed"] is False
    assert reported["faults"] == {
        "drain": [
            "a request failed: refused",
            "1 answers are not those of plain decoding",
            "long, for 6.0 s",
        ]
    }
    good = Outcome("steady", 1.0, Tally(answered=1), Findings(fewest_ready=2))
    assert summary([good])["passed"] is True


class FaultyServer(ThreadingHTTPServer):
    """What `Faulty` answers, and how many connections it closes first."""

    text = "right"
    breaks = 0
    daemon_threads = True


class Faulty(BaseHTTPRequestHandler):
    """Closes the first `server.breaks` connections, then answers each request in one piece."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        assert isinstance(server, FaultyServer)
        if server.breaks > 0:
            server.breaks -= 1
            self.close_connection = True
            return
        text = server.text
        if asked.get("stream"):
            new = {"text": text} if self.path == "/v1/completions" else {"delta": {"content": text}}
            part = {**new, "index": 0, "finish_reason": "stop"}
            body = f"data: {json.dumps({'choices': [part]})}\n\ndata: [DONE]\n\n"
            kind = "text/event-stream"
        else:
            message = {"role": "assistant", "content": text}
            new = {"text": text} if self.path == "/v1/completions" else {"message": message}
            whole = {**new, "finish_reason": "stop"}
            body, kind = json.dumps({"choices": [whole]}), "application/json"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


@pytest.fixture
def server():
    found = FaultyServer(("127.0.0.1", 0), Faulty)
    serving = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
    serving.start()
    yield found
    found.shutdown()
    serving.join()
    found.server_close()


def test_traffic_compares_every_answer_and_forgives_only_what_a_kill_cut(server):
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    texts = plain_texts(url, "m", QUESTIONS)
    assert set(texts.values()) == {"right"}
    assert len(texts) == len(QUESTIONS)
    with Load(url, "m", texts) as load:
        load.wait_answers(12, 30)
        steady = load.tally
        assert (steady.failed, steady.wrong_text, steady.cut_by_kill) == (0, 0, 0)
        assert 0 < steady.streamed < steady.answered
        load.begin()
        server.breaks = 2
        load.wait_answers(12, 30)
        assert load.tally.failed == 2
        load.begin()
        load.allow_cuts()
        server.breaks = 2
        load.wait_answers(12, 30)
        assert (load.tally.failed, load.tally.cut_by_kill) == (0, 2)
        load.begin()
        server.text = "wrong"
        load.wait_answers(12, 30)
        assert load.tally.wrong_text > 0


def test_further_traffic_asks_its_own_questions_and_only_while_it_is_on(server):
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    texts = plain_texts(url, "m", QUESTIONS)
    client = Client(0, is_stream=True, keeps_connections=True, questions=QUESTIONS[3:4])
    first = Load(url, "m", {QUESTIONS[3]: "right"})
    off = threading.Event()
    with first.more([client], lambda _: not off.is_set()) as load:
        load.wait_answers(2, 30)
        assert load.tally.failed == load.tally.wrong_text == 0
        assert load.tally.streamed == load.tally.answered
    off.set()
    asked: list[float] = []
    asked_twice = threading.Event()

    def is_on(at_s: float) -> bool:
        asked.append(at_s)
        if len(asked) > 1:
            asked_twice.set()
        return False

    with Load(url, "m", texts, [client], is_on) as load:
        assert asked_twice.wait(30)
    assert load.tally.sent == 0
    assert asked[0] < asked[1]
