"""`specdecode-engine check` of models on the hub: texts and headers are read, no weights."""

import json
from pathlib import Path

import pytest

from specdecode_engine.cli.check.command import check
from specdecode_engine.fetch.headers import FIRST_BYTES
from tests.engine.checkpoints import Checkpoints
from tests.engine.fetch.hub_server import FakeHub

EXAMPLE = Path(__file__).parents[3] / "examples" / "models" / "target"


def files_of(folder: Path, weights: bytes | None = None) -> dict[str, bytes]:
    suffixes = (".json", ".safetensors")
    files = {each.name: each.read_bytes() for each in folder.iterdir() if each.suffix in suffixes}
    return files if weights is None else {**files, "model.safetensors": weights}


@pytest.fixture
def endpoint(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return hub


def test_a_pair_on_the_hub_has_the_report_of_its_folders(
    endpoint: FakeHub, checkpoints: Checkpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = []
    endpoint.add("org/target", files_of(checkpoints.target))
    endpoint.add("org/head", files_of(checkpoints.eagle3))
    for models in (
        [str(checkpoints.target), str(checkpoints.eagle3)],
        ["hf://org/target", "hf://org/head@main"],
    ):
        assert check([*models, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert [report[role].pop("path") for role in ("target", "draft")] == models
        reports.append(report)
    assert reports[0] == reports[1]
    assert reports[1]["target"]["has_tensors"]


def test_a_head_of_pickles_is_checked_by_its_config(
    endpoint: FakeHub, checkpoints: Checkpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.add("org/target", files_of(checkpoints.target))
    config = (checkpoints.eagle3 / "config.json").read_bytes()
    endpoint.add("org/head", {"config.json": config, "pytorch_model.bin": b"\0" * 300_000})
    assert check(["hf://org/target", "hf://org/head", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert not report["draft"]["has_tensors"]
    assert report["draft"]["parameters"] > 10_000
    assert not any("pytorch_model.bin" in str(request) for request in endpoint.requests)


def test_the_tokenizer_on_the_hub_is_compared(
    endpoint: FakeHub, checkpoints: Checkpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    example = Path(__file__).parents[3] / "examples" / "models" / "target"
    names = ("tokenizer.json", "tokenizer_config.json")
    files = {name: (example / name).read_bytes() for name in names}
    endpoint.add("org/target", files_of(checkpoints.target) | files)
    assert check(["hf://org/target", "--json"]) == 0
    tokenizer = json.loads(capsys.readouterr().out)["tokenizer"]
    assert tokenizer == {"transformers_class": "TokenizersBackend", "difference": None}


def test_only_headers_of_large_files_are_read(
    endpoint: FakeHub, checkpoints: Checkpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    files = files_of(checkpoints.target)
    assert len(files["model.safetensors"]) > FIRST_BYTES
    endpoint.add("org/target", files)
    assert check(["hf://org/target"]) == 0
    assert "target: hf://org/target\n" in capsys.readouterr().out
    texts = [len(content) for name, content in files.items() if name.endswith(".json")]
    ends = {FIRST_BYTES, *texts}
    assert {*endpoint.ranges()} == {f"bytes=0-{end - 1}" for end in ends}
    assert not endpoint.leaked


def test_stop_tokens_of_a_model_on_the_hub_are_those_of_its_folder(
    endpoint: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.add("org/example", files_of(EXAMPLE))
    reports = []
    for model in (str(EXAMPLE), "hf://org/example"):
        assert check([model, "--json"]) == 0
        reports.append(json.loads(capsys.readouterr().out)["stop_tokens"])
    assert reports[0] == reports[1]
    assert [each["token"] for each in reports[1]] == ["<|endoftext|>", "<|im_end|>"]


def test_a_header_longer_than_the_first_read_is_read_again(
    endpoint: FakeHub, checkpoints: Checkpoints
) -> None:
    stored = (checkpoints.target / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(stored[:8], "little")
    header = stored[8:end].ljust(FIRST_BYTES + 8)
    weights = len(header).to_bytes(8, "little") + header + stored[end:]
    endpoint.add("org/target", files_of(checkpoints.target, weights))
    assert check(["hf://org/target"]) == 0
    assert f"bytes=0-{len(header) + 7}" in endpoint.ranges()


def test_faults_of_the_hub_are_named(
    endpoint: FakeHub, checkpoints: Checkpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(["hf://org/absent"]) == 2
    assert "hf://org/absent: private, gated or not there" in capsys.readouterr().err
    endpoint.add("org/damaged", files_of(checkpoints.target, b"\xff" * 2000))
    assert check(["hf://org/damaged"]) == 2
    assert "model.safetensors is not a safetensors file" in capsys.readouterr().err
    endpoint.faults.no_ranges = True
    endpoint.add("org/target", files_of(checkpoints.target))
    assert check(["hf://org/target"]) == 2
    assert "it sends model.safetensors whole" in capsys.readouterr().err


def test_a_refusal_names_the_uri(
    endpoint: FakeHub, checkpoints: Checkpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = json.loads((checkpoints.target / "config.json").read_text())
    config = json.dumps({**keys, "num_hidden_layers": 4}).encode()
    endpoint.add("org/target", {**files_of(checkpoints.target), "config.json": config})
    assert check(["hf://org/target"]) == 1
    assert "hf://org/target: lacks model.layers.3" in capsys.readouterr().err


def test_a_malformed_uri_is_an_error_of_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        check(["hf://only-a-name"])
    assert caught.value.code == 2
    assert "write hf://ORG/NAME@REVISION" in capsys.readouterr().err
