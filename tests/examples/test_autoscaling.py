"""The examples of autoscalers follow what engines export, and scale what there is."""

from pathlib import Path

import pytest
import yaml

from specdecode_api import names
from specdecode_engine.stats.prometheus import EngineMetrics
from specdecode_engine.stats.snapshot import CoreSnapshot

FOLDER = Path(__file__).parents[2] / "examples" / "autoscaling"
METRIC = "specdecode_load"


def read(name):
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


@pytest.mark.parametrize("name", ["hpa", "keda"])
def test_autoscalers_scale_a_deployment_of_ours(name):
    target = read(name)["spec"]["scaleTargetRef"]
    assert (target["apiVersion"], target["kind"]) == (names.API_VERSION, names.KIND)


def test_autoscalers_follow_the_load_to_the_same_target():
    assert EngineMetrics(CoreSnapshot).registry.get_sample_value(METRIC) == 0
    (metric,) = read("hpa")["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == METRIC
    (trigger,) = read("keda")["spec"]["triggers"]
    assert METRIC in trigger["metadata"]["query"]
    (rule,) = read("adapter-rule")["rules"]["custom"]
    assert rule["name"] == {"matches": METRIC, "as": METRIC}
    milli = metric["pods"]["target"]["averageValue"].removesuffix("m")
    assert int(milli) / 1000 == float(trigger["metadata"]["threshold"])
