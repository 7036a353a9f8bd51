"""The example of an InferencePool: its endpoint picker finds the pool and the engines' metrics."""

from pathlib import Path

import yaml

from specdecode_api import metrics, names
from specdecode_api.metrics import core
from specdecode_engine.stats.prometheus import EngineMetrics
from specdecode_engine.stats.snapshot import CoreSnapshot
from specdecode_operator import owned
from specdecode_operator.objects.resource import parse

EXAMPLES = Path(__file__).parents[2] / "examples"


def documents():
    text = (EXAMPLES / "inference-pool.yaml").read_text()
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def plugins():
    config = yaml.safe_load(documents()["ConfigMap"]["data"]["config.yaml"])
    return {each["type"]: each.get("parameters", {}) for each in config["plugins"]}, config


def test_the_picker_reads_metrics_that_engines_export_at_their_management_port():
    found, _ = plugins()
    (engine,) = found["core-metrics-extractor"]["engineConfigs"]
    assert found["core-metrics-extractor"]["defaultEngine"] == engine["name"]
    specs = {field: text for field, text in engine.items() if field.endswith("Spec")}
    assert specs == {
        "queuedRequestsSpec": core.WAITING_REQUESTS.sample,
        "runningRequestsSpec": core.RUNNING_REQUESTS.sample,
        "kvUsageSpec": core.KV_CACHE_USAGE.sample,
        "cacheInfoSpec": core.CACHE_CONFIG_INFO.sample,
    }
    exported = {each.name for each in EngineMetrics(CoreSnapshot).registry.collect()}
    assert set(specs.values()) <= exported
    assert core.CACHE_CONFIG_INFO.labels == ("block_size", "num_gpu_blocks")
    source = found["metrics-data-source"]
    assert (source["path"], source["port"]) == (names.PATH_METRICS, names.MANAGEMENT_PORT)
    (container,) = documents()["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert f"--model-server-metrics-port={names.MANAGEMENT_PORT}" in container["args"]
    assert metrics.PREFIX == "specdecode_"


def test_pool_picker_and_route_name_one_another():
    found = documents()
    resource = parse(found[names.KIND] | {"metadata": {"name": "chat-pool", "namespace": "n"}})
    (pool,) = owned.inference_pools(resource)
    reference = pool["spec"]["endpointPickerRef"]
    assert reference["name"] == found["Service"]["metadata"]["name"]
    assert reference["port"]["number"] in {p["port"] for p in found["Service"]["spec"]["ports"]}
    template = found["Deployment"]["spec"]["template"]
    assert found["Service"]["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    assert f"--pool-name={pool['metadata']['name']}" in container["args"]
    route = yaml.safe_load((EXAMPLES / "gateway" / "httproute.yaml").read_text())
    (rule,) = route["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    assert (backend["kind"], backend["name"]) == (pool["kind"], pool["metadata"]["name"])
    assert pool["apiVersion"].startswith(backend["group"] + "/")


def test_every_scorer_of_the_profile_is_a_plugin():
    found, config = plugins()
    (profile,) = config["schedulingProfiles"]
    assert {each["pluginRef"] for each in profile["plugins"]} <= set(found)
