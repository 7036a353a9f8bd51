"""`spec.engine.config`: what it reaches, and what it is refused for."""

import pytest

from specdecode_api.boot import EngineBoot
from specdecode_api.descriptions import field_descriptions
from specdecode_operator import owned
from specdecode_operator.objects import resource
from specdecode_operator.objects.resource import ResourceError
from specdecode_operator.owned.engine_config import OWNED

REACHED_ONLY_HERE = {
    ("adapters", "modules"): {"sql": "/models/sql"},
    ("adapters", "max_rank"): 64,
    ("adapters", "root"): "/models/adapters",
    ("adapters", "max_loaded"): 8,
    ("cpu_affinity",): "0-3,8",
    ("model", "implementation"): "transformers",
    ("model", "return_routed_experts"): True,
    ("memory", "device_fraction"): 0.9,
    ("memory", "static_fraction"): 0.8,
    ("memory", "max_total_tokens"): 4096,
    ("scheduling", "prefill_delay_steps"): 3.0,
    ("scheduling", "priority"): True,
    ("server", "max_body_bytes"): 65536,
    ("server", "request_headers_timeout_seconds"): 5.0,
    ("server", "request_body_timeout_seconds"): 600.0,
    ("server", "prompt_tokens_details"): True,
    ("server", "metrics_on_api_port"): True,
    ("server", "engine_process"): "on",
    ("speculation", "profile_seconds"): 0.5,
}
"""Settings of the boot file without a field of the custom resource, with a value of each."""


def nested(path, value):
    for name in reversed(path):
        value = {name: value}
    return value


@pytest.fixture
def boot_of(example):
    """The boot file for a config."""

    def of(config):
        manifest = example(engine={"device": "CPU", "config": config})
        return owned.build(resource.parse(manifest), "engine:test").boot

    return of


@pytest.fixture
def errors_of(boot_of):
    """The errors about a config."""

    def of(config):
        with pytest.raises(ResourceError) as refusal:
            boot_of(config)
        return refusal.value.sentences

    return of


def test_every_setting_of_the_boot_file_has_a_field_or_is_reached():
    rows = field_descriptions(EngineBoot.model_json_schema())
    paths = [row.path for row in rows]
    leaves = [
        path for path in paths if not any(other[: len(path)] == path != other for other in paths)
    ]
    tables = {("speculation", "table"), ("speculation", "tuned")}
    unowned = {
        path for path in leaves if not any(path[:size] in OWNED for size in range(1, len(path) + 1))
    }
    assert unowned == set(REACHED_ONLY_HERE)
    assert {path for path in OWNED if path not in paths} == set()
    assert tables <= set(OWNED)


@pytest.mark.parametrize("path", REACHED_ONLY_HERE, ids=".".join)
def test_a_setting_without_a_field_is_reached(path, boot_of):
    value = REACHED_ONLY_HERE[path]
    found = boot_of(nested(path, value)).model_dump()
    for name in path:
        found = found[name]
    assert found == value


@pytest.mark.parametrize("path", OWNED, ids=".".join)
def test_a_setting_with_a_field_is_refused_with_its_name(path, errors_of):
    (sentence,) = errors_of(nested(path, "x"))
    assert sentence == f"engine.config.{'.'.join(path)}: cannot be set here; {OWNED[path]}"


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            {"cpu_afinity": "0"},
            "engine.config.cpu_afinity: no such field; did you mean cpu_affinity?",
        ),
        ({"cpu_affinity": "all"}, "engine.config.cpu_affinity: string should match pattern"),
        (
            {"memory": {"max_total_tokens": 0}},
            "engine.config.memory.max_total_tokens: input",
        ),
        ({"memory": 3}, "engine.config.memory: input should be a valid dictionary"),
        ({"server": None}, "engine.config.server: null also resets settings that cannot be set"),
    ],
)
def test_a_wrong_setting_is_refused_with_place_and_remedy(config, sentence, errors_of):
    (found,) = errors_of(config)
    assert found.startswith(sentence)


def test_several_ranks_need_engine_processes_of_their_own(example):
    manifest = example(
        parallelism={"tensor": 2}, engine={"config": {"server": {"engine_process": "off"}}}
    )
    with pytest.raises(ResourceError) as refusal:
        owned.build(resource.parse(manifest), "engine:test")
    assert refusal.value.sentences == (
        "engine.config.server.engine_process: off would leave no process for the ranks, and "
        "parallelism.tensor is 2: use auto or on",
    )


def test_every_wrong_setting_is_listed(errors_of):
    assert len(errors_of({"device": "cpu", "graphs": {"mode": "off"}, "server": {"port": 1}})) == 3


def test_null_restores_a_default_and_an_empty_patch_changes_nothing(boot_of):
    assert boot_of({"cpu_affinity": None, "speculation": {"profile_seconds": None}}) == boot_of({})
