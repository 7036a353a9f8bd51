"""The command line and the pod of vLLM for a resource."""

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from specdecode_api import names
from specdecode_api.descriptions import field_descriptions
from specdecode_api.peer_flags import Peer, read_peer_flags
from specdecode_api.schema import resource_schema
from specdecode_api.v1alpha1.engine import EngineSpec
from specdecode_api.v1alpha1.runtime_arguments import argument_rules
from specdecode_api.v1alpha1.runtimes import (
    OPERATORS_ARGUMENTS,
    OWNED_ARGUMENTS,
    SECTIONS,
    VLLM_FIELDS,
)
from specdecode_operator import owned
from specdecode_operator.commands import render
from specdecode_operator.objects.resource import ResourceError, parse
from specdecode_operator.owned.models import mounts
from specdecode_operator.owned.runtimes.vllm import arguments, token_ranges
from specdecode_operator.owned.runtimes.vllm_pod import PRE_STOP

VLLM: dict[str, Any] = {
    "model": {"uri": "pvc://models/target"},
    "engine": {"runtime": "VLLM"},
    "router": {},
    "rollout": {"mode": "Manual"},
}
RULES = argument_rules()
EAGLE3 = {"algorithm": "EAGLE3", "draft": {"uri": "pvc://models/eagle3"}}

EVERYTHING: dict[str, Any] = {
    "model": {"uri": "hf://org/m@v1", "contextLength": 8192, "servedName": "a/b"},
    "pageSize": 64,
    "parallelism": {"tensor": 4, "pipeline": 2, "expert": True},
    "serving": {"toolParser": "hermes", "reasoningParser": "qwen3"},
    "lifecycle": {"drainTimeout": "2m"},
    "engine": {
        "kvCache": {"size": "1Gi", "dtype": "fp8_e4m3", "prefixCaching": False},
        "scheduler": {"chunkedPrefillTokens": 4096},
        "attentionBackend": "FlashInfer",
        "graphs": {"mode": "Eager", "batchSizes": [1, 2]},
        "overlap": False,
        "extraArgs": ["--trust-remote-code"],
    },
}


def resource(**changes: Any) -> Any:
    spec = {**VLLM, **changes}
    spec["engine"] = {**VLLM["engine"], **changes.get("engine", {})}
    metadata = {"name": "chat", "namespace": "team", "uid": "u-1"}
    return parse(
        {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec}
    )


def words(**changes: Any) -> list[str]:
    spec = resource(**changes).spec
    return arguments("chat", spec, mounts(spec))


def option(found: list[str], flag: str) -> str | None:
    return found[found.index(flag) + 1] if flag in found else None


SUFFIX_IMAGE = {"image": "vllm-with-arctic:0.32.0"}


def config(engine: Any = None, /, **speculation: Any) -> dict[str, Any]:
    found = words(speculation=speculation, engine=engine or {})
    text = option(found, "--speculative-config")
    assert text is not None
    return dict(json.loads(text))


def test_the_smallest_resource_sets_what_the_operator_promises():
    found = words()
    assert found[:2] == ["serve", "/models/target/target"]
    assert option(found, "--served-model-name") == "chat"
    assert (option(found, "--port"), option(found, "--shutdown-timeout")) == ("8000", "60")
    assert (option(found, "--max-num-seqs"), option(found, "--max-num-queued-reqs")) == (
        "64",
        "576",
    )
    assert "--speculative-config" not in found
    assert "--max-num-batched-tokens" not in found, "vLLM's default is not that of Specdecode"


def test_what_is_set_reaches_the_command_line():
    found = words(**EVERYTHING)
    assert found[:3] == ["serve", "org/m", "--trust-remote-code"]
    expected = {
        "--revision": "v1",
        "--max-model-len": "8192",
        "--served-model-name": "a/b",
        "--block-size": "64",
        "--tensor-parallel-size": "4",
        "--pipeline-parallel-size": "2",
        "--tool-call-parser": "hermes",
        "--reasoning-parser": "qwen3",
        "--shutdown-timeout": "120",
        "--kv-cache-memory-bytes": str(2**30),
        "--kv-cache-dtype": "fp8_e4m3",
        "--max-num-batched-tokens": "4096",
        "--attention-backend": "FLASHINFER",
    }
    assert {flag: option(found, flag) for flag in expected} == expected
    switches = {
        "--enable-expert-parallel", "--enable-auto-tool-choice", "--no-enable-prefix-caching",
        "--enforce-eager", "--no-async-scheduling",
    }  # fmt: skip
    assert switches <= set(found)
    at = found.index("--cudagraph-capture-sizes")
    assert found[at + 1 : at + 3] == ["1", "2"]


def test_the_queue_limit_leaves_room_for_running_requests():
    """vLLM's limit is of waiting and running requests over all copies: 0 would refuse all."""
    none_waits = {"scheduler": {"maxRunningRequests": 8, "maxQueuedRequests": 0}}
    assert option(words(engine=none_waits), "--max-num-queued-reqs") == "8"
    copies = words(engine={"scheduler": {"maxQueuedRequests": 10}}, parallelism={"data": 2})
    assert option(copies, "--max-num-queued-reqs") == "138"


def test_drafts_become_the_speculative_config():
    assert config(**EAGLE3, numSteps=5) == {
        "method": "eagle3", "model": "/models/target/eagle3", "num_speculative_tokens": 5,
    }  # fmt: skip
    hub = {"algorithm": "DFLASH", "draft": {"uri": "hf://org/d@v2"}, "numSteps": 15}
    assert config(**hub) == {
        "method": "dflash", "model": "org/d", "revision": "v2", "num_speculative_tokens": 15,
    }  # fmt: skip
    assert config(algorithm="MTP") == {"method": "mtp", "num_speculative_tokens": 3}
    prompt = {"source": "Prompt", "minMatch": 2, "maxDepth": 5}
    assert config(algorithm="NGRAM", ngram=prompt) == {
        "method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5,
        "num_speculative_tokens": 3,
    }  # fmt: skip
    short = config(algorithm="NGRAM", ngram={"source": "Prompt", "maxDepth": 2})
    assert (short["prompt_lookup_min"], short["prompt_lookup_max"]) == (2, 2)
    suffix = config(SUFFIX_IMAGE, algorithm="NGRAM")
    assert (suffix["method"], suffix["suffix_decoding_max_cached_requests"]) == ("suffix", 0)
    shared = config(SUFFIX_IMAGE, algorithm="NGRAM", ngram={"scope": "Model"})
    assert "suffix_decoding_max_cached_requests" not in shared


def table(*entries: tuple[int, int]) -> dict[str, Any]:
    rows = [{"from": start, "candidateSteps": [steps]} for start, steps in entries]
    return {**EAGLE3, "adaptive": {"policy": "Static", "batchSizes": rows}}


def test_a_table_becomes_ranges_from_one_to_the_largest_batch():
    found = config(**table((17, 1), (4, 7), (33, 0)))
    assert found["num_speculative_tokens"] == 7, "vLLM lowers larger values without a message"
    assert found["num_speculative_tokens_per_batch_size"] == [[1, 16, 7], [17, 32, 1], [33, 64, 0]]


def test_entries_above_the_largest_batch_are_left_out():
    wanted = resource(speculation=table((1, 3), (9, 2), (65, 0))).spec.speculation
    assert token_ranges(wanted, 64) == [(1, 8, 3), (9, 64, 2)]
    assert token_ranges(wanted, 8) == [(1, 8, 3)]


def test_every_field_of_an_engine_has_a_row():
    rows = field_descriptions(resource_schema())
    paths = [".".join(row.path[1:]) for row in rows if row.path[0] == "spec"]
    described = {
        path
        for path in paths
        if path.split(".")[0] in SECTIONS
        and not any(other.startswith(f"{path}.") for other in paths)
    }
    found = {row.path for row in VLLM_FIELDS}
    assert described <= found
    assert found <= set(paths)


def test_arguments_of_the_operator_are_those_of_vllm():
    known = read_peer_flags().by_spelling()
    flags = owned_flags()
    assert {flag for flag in flags if Peer.VLLM not in known[flag][0].peers} == set()
    own = {word for word in words(speculation=EAGLE3) if word.startswith("--")}
    assert own <= flags | {"--no-enable-prefix-caching"}
    assert all(word in known for word in own)


ARGUMENTS = Path(__file__).parents[1] / "runtimes" / "recorded" / "vllm-0.32.0-arguments.json"


def known_flags() -> dict[str, dict[str, Any]]:
    """The arguments of `vllm serve` 0.32.0 by spelling, as its parser was recorded."""
    rows = json.loads(ARGUMENTS.read_text())["arguments"]
    return {flag: row for row in rows for flag in row["flags"]}


def owned_flags() -> set[str]:
    return {flag for each in OWNED_ARGUMENTS.values() for flag in each} | {*OPERATORS_ARGUMENTS}


def is_accepted(*words: str) -> bool:
    return all(rule.holds(EngineSpec.model_construct(extra_args=[*words])) for rule in RULES)


def test_flags_of_the_operator_are_those_of_the_recorded_parser():
    known = known_flags()
    assert owned_flags() - known.keys() == set()
    pod = words(
        **{key: value for key, value in EVERYTHING.items() if key != "engine"},
        engine={**EVERYTHING["engine"], "extraArgs": []},
        speculation=EAGLE3,
    )
    assert {word for word in pod if word.startswith("--")} - known.keys() == set()
    is_switch = {flag: row.get("values") == "0" for flag, row in known.items()}
    following = dict(itertools.pairwise([*pod, "--"]))
    for flag, after in following.items():
        if flag.startswith("--"):
            assert is_switch[flag] == after.startswith("--"), flag


def test_all_spellings_of_owned_flags_are_refused():
    """Also beginnings, which vLLM's parser takes if no other flag begins so."""
    known = known_flags()
    same = {flag for own in owned_flags() for flag in known[own]["flags"]}
    assert [flag for flag in same if is_accepted(flag)] == []
    beginnings = {
        flag[:end] for flag in same for end in range(1 + flag.count("-", 0, 2), len(flag))
    }
    assert [word for word in beginnings - known.keys() if is_accepted(word)] == []
    others = known.keys() - same
    assert [flag for flag in others if not is_accepted(flag)] == []


@pytest.mark.parametrize(
    "word", ["--nnode", "-n2", "-r=1", "--spec-to", "--conf=/x", "--api_ke=a\nb", "-s.method=mtp"]
)
def test_a_word_that_the_parser_takes_for_a_flag_is_refused(word):
    assert not is_accepted("--trust-remote-code", word)
    assert is_accepted("--trust-remote-code", "--seed", "-1", "-O3", "-q", "fp8")


def test_the_pod_is_restricted_and_has_no_boot_file():
    built = owned.build(resource(parallelism={"tensor": 2}), "vllm:test")
    kinds = [each["kind"] for each in built.children]
    assert "ConfigMap" not in kinds
    template = built.children[-1]["spec"]["template"]
    pod = template["spec"]
    (container,) = pod["containers"]
    assert template["metadata"]["labels"][names.LABEL_RUNTIME] == "VLLM"
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (
        True,
        65532,
    )
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "4Gi"}
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert [each["containerPort"] for each in container["ports"]] == [8000]
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    assert {container[each]["httpGet"]["path"] for each in probes} == {"/health"}


def test_keys_and_tokens_reach_no_argument():
    """Routers check keys; the token of the hub comes from its Secret."""
    wanted = resource(
        model={"uri": "hf://org/m"},
        serving={"apiKeys": {"secretName": "keys"}},
        download={"tokenSecret": {"name": "hub"}, "cacheClaim": "cache"},
    )
    built = owned.build(wanted, "vllm:test").children
    pod = built[-1]["spec"]["template"]["spec"]
    environment = {each["name"]: each for each in pod["containers"][0]["env"]}
    secret = {"name": "hub", "key": "HF_TOKEN"}
    assert environment["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": secret}
    assert environment["HF_HOME"]["value"].startswith("/cache/")
    assert "keys" not in json.dumps(pod)
    routed = owned.routed(built, wanted, "router:test", is_serving=True)
    router = next(each for each in routed if each["metadata"]["name"] == "chat-router" and
                  each["kind"] == "Deployment")  # fmt: skip
    (container,) = router["spec"]["template"]["spec"]["containers"]
    assert {"--runtime=vllm", "--api-key-file=/etc/specdecode-keys"} <= set(container["args"])
    assert not any("token" in word for word in container["args"])
    service = next(each for each in routed if each["metadata"]["name"] == "chat-engines")
    assert [each["port"] for each in service["spec"]["ports"]] == [8000]


def test_spans_go_to_the_receiver_over_http():
    """vLLM's exporter sends by gRPC otherwise, and takes a URL over HTTP as it is."""
    wanted = resource(serving={"tracing": {"endpoint": "http://jaeger:4318"}})
    built = owned.build(wanted, "vllm:test").children
    (container,) = built[-1]["spec"]["template"]["spec"]["containers"]
    assert option(container["args"], "--otlp-traces-endpoint") == "http://jaeger:4318/v1/traces"
    protocol = {"name": "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "value": "http/protobuf"}
    assert protocol in container["env"]


def test_a_claim_for_models_and_downloads_is_refused():
    with pytest.raises(ResourceError, match="use another claim for downloads"):
        owned.build(
            resource(
                speculation={**EAGLE3, "draft": {"uri": "hf://org/d"}},
                download={"cacheClaim": "models"},
            ),
            "vllm:test",
        )


def test_a_policy_admits_routers_operator_and_scrapers_alone():
    peers = [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]
    (policy,) = owned.network_policies(resource(), "system", peers)
    (rule,) = policy["spec"]["ingress"]
    routers, operator, scrapers = rule["from"]
    assert routers["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "router"
    assert operator["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "system"}
    assert [scrapers] == peers
    assert [each["port"] for each in rule["ports"]] == [8000]
    plain = parse(
        {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": "chat"},
            "spec": {"model": {"uri": "pvc://models/target"}},
        }
    )
    assert owned.network_policies(plain, "system", peers) == []
    (left,) = owned.network_policies(plain, "system", peers, has_vllm_pods=True)
    assert left["spec"] == policy["spec"]


def test_policy_and_routers_select_pods_with_vllm_alone():
    """During a change of runtime, pods with Specdecode keep their clients and check their keys."""
    built = owned.build(resource(), "vllm:test").children
    labels = built[-1]["spec"]["template"]["metadata"]["labels"]
    (policy,) = owned.network_policies(resource(), "system", [])
    routed = owned.routed(built, resource(), "router:test", is_serving=True)
    engines = next(each for each in routed if each["metadata"]["name"] == "chat-engines")
    for selector in (policy["spec"]["podSelector"]["matchLabels"], engines["spec"]["selector"]):
        assert selector.items() <= labels.items()
        assert selector[names.LABEL_RUNTIME] == "VLLM"
    assert policy["metadata"]["name"] == "chat-vllm", "charts may own a policy NAME-engines"


class Busy(BaseHTTPRequestHandler):
    """An engine with one request, until its metrics were read three times."""

    reads = 0

    def do_GET(self) -> None:
        running = 0
        if self.path == "/metrics":
            Busy.reads += 1
            running = 1 if Busy.reads < 4 else 0
        lines = (
            f'vllm:num_requests_running{{engine="0"}} {running}.0\n'
            'vllm:num_requests_waiting{engine="0"} 0.0\n'
            'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7.0\n'
        )
        self.send_response(200)
        self.end_headers()
        self.wfile.write(lines.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_the_end_waits_for_requests_and_for_no_pod_that_never_served():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command = [sys.executable, "-c", PRE_STOP]
    port = str(server.server_address[1])
    try:
        subprocess.run([*command, port, "0", "60"], check=True, timeout=60)
        assert Busy.reads == 4
    finally:
        server.shutdown()
        server.server_close()
    subprocess.run([*command, port, "3600", "3600"], check=True, timeout=60)


@pytest.mark.parametrize(
    "response",
    [
        b"not HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\n\r\nvllm:num_requests_running{} many\n",
        b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe",
    ],
    ids=["no HTTP", "cut off", "no number", "not UTF-8"],
)
def test_the_end_does_not_fail_at_a_response_that_it_cannot_read(response):
    def answer_forever():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(response)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=answer_forever, daemon=True).start()
        command = [sys.executable, "-c", PRE_STOP, str(listening.getsockname()[1]), "0", "60"]
        done = subprocess.run(command, timeout=60, capture_output=True, text=True)
        listening.shutdown(socket.SHUT_RDWR)
    assert (done.returncode, done.stderr) == (0, "")


GOLDEN = Path(__file__).parent / "golden" / "vllm-recipes.yaml"
RECIPES = Path(__file__).parent / "recipes" / "vllm.yaml"


def test_objects_of_the_recipes_are_as_recorded():
    """Published recipes that vLLM takes in one pod."""
    text = RECIPES.read_text()
    rendered = render.render("recipes", text, "engine:test", "router:test", "vllm/vllm-openai:test")
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(rendered)
    assert rendered == GOLDEN.read_text(), "UPDATE_GOLDEN=1 rewrites the file: look at the diff"
    pods = [
        each["spec"]["template"]["spec"]["containers"][0]
        for each in yaml.safe_load_all(rendered)
        if each["kind"] == "Deployment"
    ]
    images = [each["image"] for each in pods if each["name"] == names.ENGINE_CONTAINER]
    own = "registry.example/vllm-with-arctic:0.32.0"
    assert images == ["vllm/vllm-openai:test"] * (text.count("kind:") - 1) + [own]


def test_the_boot_file_of_another_runtime_is_refused():
    one = RECIPES.read_text().partition("---")[0]
    with pytest.raises(render.FileError, match="has no boot file; render shows"):
        render.boot("recipes", one, None)
