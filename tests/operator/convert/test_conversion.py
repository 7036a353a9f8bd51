"""Command lines of vLLM as resources: golden files, refusals, keys, and the way back."""

import os
from pathlib import Path

import pytest
import yaml

from specdecode_api.v1alpha1 import SpecDecodeDeployment
from specdecode_operator.convert.errors import ConvertError

RUNTIMES = ("VLLM", "Specdecode")
FOLDER = Path(__file__).parent
CANARIES = ("canary-key-0123456789", "hf_canaryCANARY0123", "short-key")


def image_of(case, runtime):
    """The image of vLLM that a command line needs."""
    return case.get("image") if runtime == "VLLM" else None


def recorded(converted, runtime):
    parts = []
    for case in yaml.safe_load((FOLDER / "command_lines.yaml").read_text()):
        found = converted(case["line"], runtime=runtime, image=image_of(case, runtime))
        report = "".join(f"# {line}\n" for line in found.report())
        parts.append(f"# {case['name']}\n{found.text()}{report}")
    return "---\n".join(parts)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_resources_and_reports_are_as_recorded(converted, runtime):
    text = recorded(converted, runtime)
    golden = FOLDER / "golden" / f"{runtime.lower()}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text(), "UPDATE_GOLDEN=1 rewrites the file: look at the diff"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_converted_resource_is_valid(converted, good, runtime):
    found = converted(good["line"], runtime=runtime, image=image_of(good, runtime))
    stored = SpecDecodeDeployment.from_resource(yaml.safe_load(found.text()))
    assert stored.spec.engine.runtime == runtime
    assert stored.spec.gpus == found.manifest["spec"]["resources"]["limits"]["nvidia.com/gpu"]


def test_a_bad_command_line_is_refused_with_a_remedy(converted, bad):
    with pytest.raises(ConvertError) as refused:
        converted(bad["line"])
    assert bad["message"] in str(refused.value)


def test_all_errors_are_reported_together(converted):
    line = "vllm serve /models/m --nnodes 2 -tp two --max-num-seqs many"
    with pytest.raises(ConvertError) as refused:
        converted(line)
    assert len(refused.value.sentences) == 4


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("canary", CANARIES)
@pytest.mark.parametrize(
    "line",
    [
        "vllm serve org/m --api-key {}",
        "vllm serve org/m --api-key={} --enforce-eager",
        "vllm serve org/m --api-key first-of-two {}",
        "VLLM_API_KEY={} vllm serve org/m",
        "vllm serve org/m --hf-token {}",
        "HF_TOKEN={} vllm serve org/m",
        "HUGGING_FACE_HUB_TOKEN={} vllm serve org/m",
        "S3_SECRET_ACCESS_KEY={} vllm serve org/m",
        "DB_PASSWORD={} vllm serve org/m",
        "vllm serve org/m --watermark-config {}",
        'vllm serve org/m --kv-transfer-config \'{{"a": {{"api_key": "{}"}}}}\'',
        "vllm serve org/m --otlp-traces-endpoint http://user:{}@collector:4318",
        "HF_ENDPOINT=https://user:{}@mirror.example.com vllm serve org/m",
        "vllm serve org/m --model-loader-extra-config.token={}",
    ],
)
def test_a_key_is_in_no_output(converted, line, canary, runtime):
    found = converted(line.format(canary), runtime=runtime)
    assert canary not in "\n".join([found.text(), *found.report()])


@pytest.mark.parametrize("canary", CANARIES[:2])
@pytest.mark.parametrize(
    "line",
    [
        "vllm serve org/m --apikey {}",
        "vllm serve org/m --apikey={}",
        "vllm serve org/m {}",
        "vllm serve {}",
        "{} vllm serve org/m",
        "vllm serve org/m --api-key '{}",
        "vllm serve org/m --api-key {}; ls",
        "vllm serve org/m --api-key $({})",
        "vllm serve org/m -k{}",
        "vllm serve --api-key {}",
        "vllm serve org/m --max-num-seqs {}",
        "vllm serve org/m -tp {}",
        "vllm serve org/m --config {}",
        "vllm serve org/m --speculative-config {}",
        'vllm serve org/m -sc \'{{"method": "{}"}}\'',
        'vllm serve org/m -sc \'{{"method": "mtp", "{}": 1, "num_speculative_tokens": 1}}\'',
        "vllm serve org/m --revision {}~",
        "vllm serve org/m --api-key {} --served-model-name {}",
    ],
)
def test_a_key_is_in_no_error(converted, line, canary):
    with pytest.raises(ConvertError) as refused:
        converted(line.replace("{}", canary).replace("{{", "{").replace("}}", "}"))
    assert canary not in str(refused.value)


def test_secrets_are_named_with_the_command_that_creates_them(converted):
    found = converted("HF_TOKEN=a API_TOKEN=b vllm serve org/m --api-key c", name="chat")
    spec = found.manifest["spec"]
    assert spec["serving"]["apiKeys"] == {"secretName": "chat-api-keys"}
    assert spec["download"]["tokenSecret"] == {"name": "chat-hugging-face"}
    (container,) = spec["template"]["spec"]["containers"]
    reference = {"secretKeyRef": {"name": "chat-environment", "key": "API_TOKEN"}}
    assert container["env"] == [{"name": "API_TOKEN", "valueFrom": reference}]
    assert [secret.command() for secret in found.secrets] == [
        'kubectl create secret generic chat-api-keys --from-literal=keys="$VLLM_API_KEY"',
        'kubectl create secret generic chat-hugging-face --from-literal=HF_TOKEN="$HF_TOKEN"',
        'kubectl create secret generic chat-environment --from-literal=API_TOKEN="$API_TOKEN"',
    ]


def test_uris_of_a_user_win_over_names(converted):
    line = (
        "vllm serve /models/m --revision v1 --speculative-config "
        '\'{"method": "eagle3", "model": "/models/d", "num_speculative_tokens": 2}\''
    )
    found = converted(line, model_uri="pvc://models/m", draft_uri="pvc://models/d")
    spec = found.manifest["spec"]
    assert spec["model"] == {"uri": "pvc://models/m"}
    assert spec["speculation"]["draft"] == {"uri": "pvc://models/d"}
    assert [each.given for each in found.dropped] == ["--revision v1", "the name /models/m"]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3-1-8b"),
        ("org/7b_Model", "m-7b-model"),
        ("org/___", "model"),
        ("org/" + "a" * 39 + "-b", "a" * 39),
    ],
)
def test_a_name_is_made_valid(converted, model, name):
    assert converted(f"vllm serve {model}").manifest["metadata"]["name"] == name


def test_the_served_name_gives_the_name(converted):
    found = converted("vllm serve org/m --served-model-name My.Chat").manifest
    assert found["metadata"]["name"] == "my-chat"
    assert found["spec"]["model"]["servedName"] == "My.Chat"


def test_a_config_file_comes_before_flags(converted, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "model: org/of-the-file\nmax-num-seqs: 8\nmax_model_len: 4096\nenforce-eager: true\n"
        "enable-prefix-caching: false\nserved-model-name: [chat]\napi-key: canary-key-0123456789\n"
        "speculative-config: {method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4}\n"
    )
    found = converted(f"vllm serve --config {file} --max-num-seqs 16")
    spec = found.manifest["spec"]
    assert spec["model"]["uri"] == "hf://org/of-the-file"
    assert spec["model"]["servedName"] == "chat"
    assert spec["engine"]["scheduler"]["maxRunningRequests"] == 16
    assert spec["engine"]["kvCache"]["prefixCaching"] is False
    assert spec["engine"]["graphs"]["mode"] == "Eager"
    assert spec["speculation"]["numSteps"] == 3
    assert "canary" not in found.text()
    assert converted(f"vllm serve org/m --config {file}").manifest["spec"]["model"]["uri"] == (
        "hf://org/m"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [canary-key", "is not YAML (line"),
        ("- canary-key", "write a mapping from the names of flags"),
        ("no-such-flag: canary-key", "--config: --no-such-flag is not a flag of vLLM"),
        ("a: &x [canary-key]\nb: *x", "has aliases (*NAME): write the values themselves"),
        ("config: other.yaml", "the file names another file"),
        ("max-num-seqs: canary-key-0123456789", "--max-num-seqs <21 characters>: write a whole"),
    ],
)
def test_a_bad_config_file_is_refused(converted, tmp_path, text, message):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ConvertError) as refused:
        converted(f"vllm serve org/m --config {file}")
    assert message in str(refused.value)
    assert "canary" not in str(refused.value)


def test_values_reach_the_program_as_they_are(converted):
    line = (
        "A='$(B)' vllm serve org/m --seed=-1 --hf-overrides '$(C)' -sc.method mtp --spec-tokens 1"
    )
    spec = converted(line).manifest["spec"]
    assert spec["engine"]["extraArgs"] == ["--seed=-1", "--hf-overrides", "$$(C)"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "A", "value": "$$(B)"}]


def test_middleware_is_added_each_time(converted):
    found = converted("vllm serve org/m --middleware a.b --middleware c.d --seed 1 --seed 2")
    extra = found.manifest["spec"]["engine"]["extraArgs"]
    assert extra == ["--middleware", "a.b", "--middleware", "c.d", "--seed", "2"]


def test_a_folder_of_an_argument_is_noted(converted):
    found = converted("vllm serve org/m --tokenizer ./t --gpu-memory-utilization .95")
    assert "--tokenizer ./t names a file: add it to the pods by template" in found.notes
    assert not any(".95" in note for note in found.notes)


def test_many_arguments_are_refused(converted):
    words = " ".join(f"--compilation-config.a{number} {number}" for number in range(40))
    with pytest.raises(ConvertError, match="would have 80 words"):
        converted(f"vllm serve org/m {words}")
