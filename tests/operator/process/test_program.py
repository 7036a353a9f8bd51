"""The command line: render, boot, settings, and how errors read."""

import json
import logging
from pathlib import Path

import pytest
import yaml

from specdecode_api.boot import EngineBoot
from specdecode_operator.__main__ import main
from specdecode_operator.cluster import watching
from specdecode_operator.process import logs
from specdecode_operator.settings import (
    Settings,
    default_engine_image,
    from_environment,
    identity,
    lease_namespace,
)

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = str(ROOT / "examples" / "specdecode.yaml")


@pytest.fixture
def edited(tmp_path):
    """A file with the example, its spec changed."""

    def write(**spec):
        manifest = yaml.safe_load(Path(EXAMPLE).read_text())
        manifest["spec"] |= spec
        path = tmp_path / "edited.yaml"
        path.write_text(yaml.safe_dump(manifest))
        return str(path)

    return write


def test_render_prints_the_children(capsys):
    assert main(["render", "-f", EXAMPLE, "--image", "engine:9"]) == 0
    children = list(yaml.safe_load_all(capsys.readouterr().out))
    kinds = [child["kind"] for child in children]
    assert kinds == ["ServiceAccount", "ConfigMap", "Service", "Deployment"]
    (container,) = children[-1]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "engine:9"


def test_render_reads_standard_input_and_several_documents(capsys, monkeypatch):
    text = Path(EXAMPLE).read_text()
    other = text.replace("name: chat", "name: other")
    stream = f"apiVersion: v1\nkind: ConfigMap\n---\n{text}\n---\n{other}"
    monkeypatch.setattr("sys.stdin.read", lambda: stream, raising=False)
    assert main(["render", "-f", "-"]) == 0
    children = list(yaml.safe_load_all(capsys.readouterr().out))
    assert {child["metadata"]["name"].split("-")[0] for child in children} == {"chat", "other"}


def test_boot_prints_what_the_engine_reads(capsys):
    assert main(["boot", "-f", EXAMPLE]) == 0
    boot = EngineBoot.model_validate_json(capsys.readouterr().out)
    assert boot.model.path == "/models/target/target"


@pytest.mark.parametrize(
    ("uri", "folder"),
    [
        ("hf://org/name@v1", "org/name"),
        ("oci://host:5000/a/b:v1@sha256:" + "0" * 64, "a/b"),
        ("oci://host/a", "a"),
        ("pvc://claim/x", "x"),
    ],
)
def test_boot_maps_every_place_but_the_node_to_a_folder(uri, folder, edited, capsys, tmp_path):
    assert main(["boot", "-f", edited(model={"uri": uri}), "--models", str(tmp_path)]) == 0
    boot = EngineBoot.model_validate_json(capsys.readouterr().out)
    assert boot.model.path == str(tmp_path / folder)


def test_boot_maps_claims_to_a_folder_of_this_machine(capsys, tmp_path):
    assert main(["boot", "-f", EXAMPLE, "--models", str(tmp_path)]) == 0
    boot = EngineBoot.model_validate_json(capsys.readouterr().out)
    assert boot.model.path == str(tmp_path / "target")
    assert boot.speculation.draft_path == str(tmp_path / "eagle3")
    assert boot.server.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"pageSise": 16}, ["spec.pageSise", "not a known field", "did you mean pageSize?"]),
        ({"pageSize": 3}, ["spec.pageSize", "3", "power of two"]),
        ({"replicas": -1}, ["spec.replicas", "-1", "greater than or equal to 0"]),
        ({"model": {}}, ["spec.model.uri", "is missing", "set it"]),
        ({"model": {"uri": "s3://bucket/x"}}, ["spec.model.uri", "s3://bucket/x", "pvc://CLAIM"]),
        (
            {"model": {"uri": "pvc://m", "servdName": "x"}},
            ["spec.model.servdName", "did you mean servedName?"],
        ),
        (
            {"speculation": {"algorithm": "EAGLE3"}},
            ["spec.speculation", "draft", "add draft.uri", "EAGLE3"],
        ),
        (
            {"speculation": {"algorithm": "MEDUSA", "numSteps": 2}},
            ["spec.speculation.algorithm", "'MEDUSA'", "'STANDALONE'"],
        ),
        (
            {"speculation": {"adaptive": {"batchSizes": [{"from": 1, "candidateStep": [1]}]}}},
            ["spec.speculation.adaptive.batchSizes.0.candidateSteps", "is missing"],
        ),
        ({"resources": {"limits": {"cpu": "two"}}}, ["spec.resources.limits.cpu", "'two'"]),
    ],
)
def test_a_bad_resource_is_explained(spec, words, edited, capsys):
    path = edited(**spec)
    assert main(["render", "-f", path]) == 2
    error = capsys.readouterr().err
    assert path in error
    for word in words:
        assert word in error


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "is not YAML"),
        ("kind: ConfigMap", "has no SpecDecodeDeployment; write one with apiVersion"),
        (
            "apiVersion: specdecode.io/v1alpha1\nkind: SpecDecodeDeployment\n"
            "metadata: {name: Chat}\nspec: {model: {uri: 'pvc://models'}}",
            "metadata.name becomes the name of a Service",
        ),
        (
            "apiVersion: specdecode.io/v1alpha1\nkind: SpecDecodeDeployment\nmetadata: {name: c}",
            "spec is missing",
        ),
    ],
)
def test_a_bad_file_is_explained(text, words, tmp_path, capsys):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    assert main(["render", "-f", str(path)]) == 2
    assert words in capsys.readouterr().err


def test_a_missing_file_is_an_error(capsys):
    assert main(["render", "-f", "/no/such/file.yaml"]) == 1
    assert "/no/such/file.yaml" in capsys.readouterr().err


def test_settings_come_from_the_environment():
    assert from_environment({}).engine_image == default_engine_image()
    settings = from_environment(
        {
            "SPECDECODE_ENGINE_IMAGE": "engine:2",
            "SPECDECODE_NAMESPACES": "a b",
            "SPECDECODE_RESYNC_SECONDS": "7.5",
            "SPECDECODE_WORKERS": "3",
            "SPECDECODE_LEADER_ELECTION": "False",
            "SPECDECODE_LEASE_NAME": "mine",
        }
    )
    assert (settings.leader_election, settings.lease_name) == (False, "mine")
    assert settings.engine_image == "engine:2"
    assert settings.namespaces == ("a", "b")
    assert (settings.resync_seconds, settings.workers) == (7.5, 3)


def test_a_bad_setting_names_itself():
    with pytest.raises(ValueError, match="SPECDECODE_WORKERS is 'many'; set it to a number"):
        from_environment({"SPECDECODE_WORKERS": "many"})
    with pytest.raises(ValueError, match="SPECDECODE_LEADER_ELECTION is 'maybe'; set it to true"):
        from_environment({"SPECDECODE_LEADER_ELECTION": "maybe"})


def test_the_lease_lies_where_the_operator_runs(tmp_path):
    file = tmp_path / "namespace"
    alone = Settings(engine_image="e")
    assert lease_namespace(alone, file) == "default"
    assert lease_namespace(Settings(engine_image="e", namespaces=("a", "b")), file) == "a"
    file.write_text("system\n")
    assert lease_namespace(alone, file) == "system"
    assert lease_namespace(Settings(engine_image="e", lease_namespace="given"), file) == "given"


def test_a_pod_is_itself_after_a_restart_and_a_process_is_nobody_else():
    settings = Settings(engine_image="e")
    in_pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert identity(settings, in_pod) == identity(settings, in_pod)
    assert identity(settings, {}) != identity(settings, {})
    assert identity(Settings(engine_image="e", identity="given"), in_pod) == "given"


def test_an_api_server_that_is_not_there_ends_the_program(tmp_path, capsys):
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
                "users": [{"name": "u", "user": {"token": "secret-token"}}],
            }
        )
    )
    arguments = ["run", "--kubeconfig", str(kubeconfig), "--start-timeout-seconds", "0"]
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        assert main([*arguments, "--metrics-port", "0"]) == 1
    finally:
        root.handlers[:], root.level = before
    error = capsys.readouterr().err
    assert "127.0.0.1:9" in error
    assert "secret-token" not in error


def test_log_lines_are_json_with_fields():
    record = logging.makeLogRecord({"name": "x", "levelname": "INFO", "msg": "applied"})
    record.child = "chat"
    line = json.loads(logs.JsonLines().format(record))
    assert (line["event"], line["level"], line["child"]) == ("applied", "info", "chat")


@pytest.mark.parametrize(
    ("age_s", "wait_s", "count"),
    [(10, 0, 0), (899, 599, 0), (901, 0, 1), (0, 601, 1), (901, 601, 2)],
)
def test_health_is_about_work_done(age_s, wait_s, count):
    assert len(watching.problems(watching.Vitals(age_s, 300, wait_s))) == count
