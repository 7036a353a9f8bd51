"""LoRA adapters as peft saves them: what is read of each field and tensor, and what is refused."""

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from checks.harness.adapter_files import (
    ATTENTION,
    EVERYWHERE,
    PREFIX,
    random_factors,
    write_adapter,
)
from specdecode_engine.cli.check.command import check
from specdecode_engine.model.checkpoint.adapters.adapter import Adapter
from specdecode_engine.model.checkpoint.adapters.adapter_file import AdapterBase
from specdecode_engine.model.checkpoint.adapters.pattern import Pattern
from specdecode_engine.model.checkpoint.config_file import CheckpointError, ConfigFile
from specdecode_engine.model.checkpoint.quantized.store import open_checkpoint
from specdecode_engine.model.target.adapter_base import adapter_base
from specdecode_engine.model.target.config import LlamaConfig
from specdecode_engine.startup.model_check import CheckOptions, check_pair
from tests.engine.checkpoints import HIDDEN, VOCAB, Checkpoints

Q0 = "model.layers.0.self_attn.q_proj"
Q_NAME = f"{PREFIX}{Q0}"
CHECKPOINT = "specdecode_engine.model.checkpoint.checkpoint"
CONFIGS = Path(__file__).parents[4] / "configs"


@pytest.fixture
def base(checkpoints: Checkpoints) -> AdapterBase:
    target = checkpoints.target
    return adapter_base(target, LlamaConfig.load(target), open_checkpoint(target))


@pytest.fixture
def factors(checkpoints: Checkpoints) -> dict[str, Tensor]:
    return random_factors(checkpoints.target, ATTENTION)


def refusal(folder: Path, base: AdapterBase) -> str:
    with pytest.raises(CheckpointError) as raised:
        Adapter.read(folder, base)
    return str(raised.value)


def test_every_tensor_is_placed_at_its_map(
    tmp_path: Path, checkpoints: Checkpoints, base: AdapterBase
) -> None:
    tensors = random_factors(checkpoints.target, EVERYWHERE)
    adapter = Adapter.read(write_adapter(tmp_path, tensors), base)
    assert len(adapter.factors) == 3 * 7 + 2
    assert adapter.ranks == (4,)
    assert adapter.bytes == sum(one.nbytes for one in tensors.values())
    q = adapter.factors[Q0]
    assert torch.equal(q.a, tensors[f"{Q_NAME}.lora_A.weight"])
    assert torch.equal(q.b, tensors[f"{Q_NAME}.lora_B.weight"])
    assert q.scale == 2.0
    assert adapter.factors["model.embed_tokens"].a.shape == (4, VOCAB)
    assert adapter.factors["lm_head"].b.shape == (VOCAB, 4)


@pytest.mark.parametrize(
    ("changes", "scale"),
    [
        ({"lora_alpha": 11.3137}, 11.3137 / 4),
        ({"use_rslora": True}, 8 / 2),
        ({"alpha_pattern": {"q_proj": 2}}, 2 / 4),
        ({"alpha_pattern": {"layers.0.self_attn.q_proj": 2, "k_proj": 3}}, 2 / 4),
        ({"alpha_pattern": {r".*\.0\.self_attn\.q_proj": 2}, "use_rslora": True}, 2 / 2),
        ({"alpha_pattern": {"proj": 2}}, 8 / 4),
        ({"alpha_pattern": {"self.attn.q_proj": 2}}, 2 / 4),
        ({"alpha_pattern": {"^self_attn.q_proj": 2}}, 8 / 4),
        ({"alpha_pattern": {"^model.layers.0.self_attn.q_proj$": 2}}, 2 / 4),
        ({"alpha_pattern": {r"layers\.(0|10|1)\..*(q|v)_proj": 2}}, 2 / 4),
        ({"alpha_pattern": {r"layers\.\d+\.[a-z_]+\.(?:q_proj|k_proj)": 2}}, 2 / 4),
        ({"alpha_pattern": {r"layers\.[1-9]\..*_proj": 2}}, 8 / 4),
        ({"alpha_pattern": {"q_proj": 2, "self_attn.q_proj": 2}}, 2 / 4),
    ],
)
def test_the_scale_follows_alpha_and_its_pattern(
    tmp_path: Path,
    base: AdapterBase,
    factors: dict[str, Tensor],
    changes: Mapping[str, object],
    scale: float,
) -> None:
    adapter = Adapter.read(write_adapter(tmp_path, factors, changes), base)
    assert adapter.factors[Q0].scale == pytest.approx(scale)


def test_the_first_matching_rank_of_a_pattern_counts(
    tmp_path: Path, checkpoints: Checkpoints, base: AdapterBase
) -> None:
    tensors = random_factors(checkpoints.target, ["q_proj"], rank=2)
    tensors |= random_factors(checkpoints.target, ["v_proj"])
    changes = {"rank_pattern": {"q_proj": 2, "self_attn.q_proj": 9}, "use_rslora": True}
    adapter = Adapter.read(write_adapter(tmp_path, tensors, changes), base)
    assert adapter.ranks == (2, 4)
    assert adapter.factors[Q0].scale == pytest.approx(8 / math.sqrt(2))


@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": "all-linear"},
        {"target_modules": r".*\.(q|k|v|o)_proj"},
        {"layers_to_transform": [1], "layers_pattern": "layers"},
        {"modules_to_save": ["norm"]},
        {"bias": "all"},
        {"ensure_weight_tying": True},
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": "eva", "eva_config": {"rho": 2.0}},
        {"init_lora_weights": "orthogonal"},
        {"init_lora_weights": True, "corda_config": {"cache_file": None}},
        {"fan_in_fan_out": True},
        {"revision": "main", "megatron_config": {"a": 1}, "task_type": None},
        {"a_key_of_a_later_release": None, "another": False, "a_third": []},
        {"base_model_name_or_path": "/no/such/folder"},
        {"peft_version": "0.18.1"},
    ],
)
def test_fields_without_effect_change_nothing(
    tmp_path: Path, base: AdapterBase, factors: dict[str, Tensor], changes: Mapping[str, object]
) -> None:
    plain = Adapter.read(write_adapter(tmp_path / "plain", factors), base)
    changed = Adapter.read(write_adapter(tmp_path / "changed", factors, changes), base)
    assert changed.factors.keys() == plain.factors.keys()
    for name, one in changed.factors.items():
        assert torch.equal(one.a, plain.factors[name].a)
        assert torch.equal(one.b, plain.factors[name].b)
        assert one.scale == plain.factors[name].scale
    assert changed.digest != plain.digest


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("peft_type", None, "only adapters that peft saves with LORA"),
        ("peft_type", "VERA", "only adapters that peft saves with LORA"),
        ("r", 0, "a positive integer"),
        ("r", 3, "instead of [3, 64]"),
        ("lora_alpha", "8", "must be a number"),
        ("lora_alpha", -1, "must be positive"),
        ("use_rslora", "yes", "true or false"),
        ("use_dora", True, "DoRA is not supported; merge"),
        ("lora_bias", True, "biases of adapters are not supported; merge"),
        ("alora_invocation_tokens", [5, 6], "train a plain LoRA"),
        ("layer_replication", [[0, 2], [1, 3]], "repeated layers are not supported; merge"),
        ("arrow_config", {"top_k": 2}, "serve each as an adapter"),
        ("kasa_config", {"beta": 1}, "KaSA"),
        ("use_bdlora", {"nblocks": 2}, "train a plain LoRA"),
        ("use_qalora", True, "QA-LoRA"),
        ("velora_config", {"rank": 1}, "train a plain LoRA"),
        ("monteclora_config", {"n": 1}, "train a plain LoRA"),
        ("trainable_token_indices", [1, 2], "trained tokens are not supported; merge"),
        ("init_lora_weights", "pissa_niter_16", "path_initial_model_for_weight_conversion"),
        ("init_lora_weights", "olora", "path_initial_model_for_weight_conversion"),
        ("init_lora_weights", "corda", "path_initial_model_for_weight_conversion"),
        ("init_lora_weights", "loftq", "path_initial_model_for_weight_conversion"),
        ("init_lora_weights", "lora_ga", "path_initial_model_for_weight_conversion"),
        ("loftq_config", {"loftq_bits": 4}, "may change what the adapter computes"),
        ("a_key_of_a_later_release", 1, "may change what the adapter computes"),
        ("alpha_pattern", {"q_proj": 2, "self_attn.q_proj": 4}, "one key for each module"),
        ("alpha_pattern", {"(a+)+": 2}, "may match slowly"),
        ("alpha_pattern", {"a*b*c*": 2}, "may match slowly"),
        ("alpha_pattern", {".?" * 34 + "X": 2}, "may match slowly"),
        ("alpha_pattern", {"(a|a)(a|ab)X": 2}, "may match slowly"),
        ("alpha_pattern", {"(q|k)(q|k)(q|k)": 2}, "may match slowly"),
        ("alpha_pattern", {"(" * 3000 + "a" + ")" * 3000: 2}, "may match slowly"),
        ("alpha_pattern", {"a{99999999999}": 2}, "may match slowly"),
        ("alpha_pattern", {"a" * 300: 2}, "may match slowly"),
        ("alpha_pattern", {"[z-a]": 2}, "not a regular expression"),
        ("alpha_pattern", {f"a{number}$": 2 for number in range(17)}, "at most 16 expressions"),
        ("alpha_pattern", {"q_proj": 10**400}, "positive and finite"),
        ("lora_alpha", 10**400, "positive and finite"),
        ("lora_alpha", 1e300, "beyond float32"),
        ("alpha_pattern", {"q_proj": 1e300}, "beyond float32"),
        ("r", 10**400, "the highest supported rank"),
        ("a_key_of_a_later_release", "x" * 10**6, "the key is unknown"),
        ("rank_pattern", {"q_proj(": 2}, "may match slowly"),
        ("rank_pattern", {"q_proj": 2.5}, "a positive integer"),
        ("rank_pattern", ["q_proj"], "must be an object"),
    ],
)
def test_fields_are_refused_by_name(
    tmp_path: Path,
    base: AdapterBase,
    factors: dict[str, Tensor],
    key: str,
    value: object,
    remedy: str,
) -> None:
    error = refusal(write_adapter(tmp_path, factors, {key: value}), base)
    assert str(tmp_path / "adapter_") in error
    assert remedy in error
    assert len(error) < 2000
    if key != "r" or value == 0:
        assert key in error


@pytest.mark.parametrize(
    ("name", "shape", "remedy"),
    [
        (f"{Q_NAME}.lora_magnitude_vector.weight", (64,), "DoRA is not supported; merge"),
        (f"{Q_NAME}.lora_B.bias", (64,), "lora_bias"),
        (f"{Q_NAME}.lora_diag", (4,), "KaSA"),
        (f"{Q_NAME}.bias", (64,), "trained biases"),
        (f"{Q_NAME}.base_layer.bias", (64,), "trained biases"),
        (f"{PREFIX}model.norm.weight", (HIDDEN,), "modules_to_save"),
        (f"{PREFIX}lm_head.weight", (VOCAB + 3, HIDDEN), "added tokens"),
        (f"{PREFIX}model.embed_tokens.weight", (VOCAB + 3, HIDDEN), "added tokens"),
        (
            f"{PREFIX}model.embed_tokens.token_adapter.trainable_tokens_delta",
            (2, HIDDEN),
            "trained tokens",
        ),
        (f"{PREFIX}model.layers.0.mlp.experts.lora_A.weight", (8, 64), "adapters of experts"),
        (
            f"{PREFIX}model.layers.0.mlp.experts.3.gate_proj.lora_A.weight",
            (4, 64),
            "adapters of experts",
        ),
        (
            f"{PREFIX}model.layers.9.self_attn.q_proj.lora_A.weight",
            (4, 64),
            "no linear map model.layers.9.self_attn.q_proj",
        ),
        (f"{Q_NAME}.lora_A.default.weight", (4, 64), "save_pretrained"),
        ("model.layers.0.self_attn.q_proj.lora_a", (4, 64), f"does not begin with {PREFIX}"),
        (f"{PREFIX}lm_head.lora_embedding_A", (4, VOCAB), "is not a factor of lm_head"),
        (f"{PREFIX}lm_head.lora_A.weight", (4, HIDDEN), "no lora_B.weight"),
        (f"{Q_NAME}.lora_A.weight", (4, 63), "[4, 63] instead of [4, 64]"),
        (f"{Q_NAME}.lora_A.weight", (5, 64), "[5, 64] instead of [4, 64]"),
        (f"{PREFIX}language_model.{Q0}.lora_A.weight", (4, 64), "the same factor"),
    ],
)
def test_tensors_are_refused_by_name(
    tmp_path: Path,
    base: AdapterBase,
    factors: dict[str, Tensor],
    name: str,
    shape: tuple[int, ...],
    remedy: str,
) -> None:
    error = refusal(write_adapter(tmp_path, factors | {name: torch.ones(shape)}), base)
    assert str(tmp_path / "adapter_model.safetensors") in error
    assert remedy in error
    assert name.removesuffix(".lora_A.weight").removeprefix(PREFIX) in error


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_must_be_finite(
    tmp_path: Path, base: AdapterBase, factors: dict[str, Tensor], value: float
) -> None:
    factors[f"{Q_NAME}.lora_B.weight"][3, 1] = value
    error = refusal(write_adapter(tmp_path, factors), base)
    assert f"{Q_NAME}.lora_B.weight[3, 1] is {value}" in error


def test_a_stored_weight_of_the_base_must_be_the_bases_own(
    tmp_path: Path, checkpoints: Checkpoints, base: AdapterBase
) -> None:
    head = load_file(checkpoints.target / "model.safetensors")["lm_head.weight"]
    tensors = random_factors(checkpoints.target, ["lm_head"])
    name = f"{PREFIX}lm_head.base_layer.weight"
    adapter = Adapter.read(write_adapter(tmp_path, tensors | {name: head}), base)
    assert adapter.factors.keys() == {"lm_head"}
    other = head.clone()
    other[5, 5] += 1
    error = refusal(write_adapter(tmp_path, tensors | {name: other}), base)
    assert f"{name} differs from the base in {checkpoints.target}" in error
    longer = torch.cat([head, head[:2]])
    error = refusal(write_adapter(tmp_path, tensors | {name: longer}), base)
    assert "tokens were added" in error
    without = adapter_base(checkpoints.target, LlamaConfig.load(checkpoints.target), None)
    error = refusal(write_adapter(tmp_path, tensors | {name: head}), without)
    assert "give the base as a folder with its weights" in error


def test_the_head_of_a_tied_base_is_compared_with_its_embedding(
    tmp_path: Path, checkpoints: Checkpoints
) -> None:
    target = tmp_path / "tied"
    shutil.copytree(checkpoints.target, target)
    keys = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(keys | {"tie_word_embeddings": True}))
    stored = load_file(target / "model.safetensors")
    del stored["lm_head.weight"]
    save_file(stored, target / "model.safetensors")
    base = adapter_base(target, LlamaConfig.load(target), open_checkpoint(target))
    tensors = random_factors(target, ["lm_head"])
    tensors[f"{PREFIX}lm_head.base_layer.weight"] = stored["model.embed_tokens.weight"]
    adapter = Adapter.read(write_adapter(tmp_path / "adapter", tensors), base)
    assert adapter.factors.keys() == {"lm_head"}


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_text_models_of_images_keep_their_layers_under_prefixes(
    tmp_path: Path, prefix: str
) -> None:
    shutil.copy(CONFIGS / "gemma-3-4b.json", tmp_path / "config.json")
    base = adapter_base(tmp_path, LlamaConfig.load(tmp_path), None)
    outputs, inputs = base.shapes[Q0]
    name = f"{PREFIX}{prefix}layers.0.self_attn.q_proj"
    tensors = {
        f"{name}.lora_A.weight": torch.ones(4, inputs),
        f"{name}.lora_B.weight": torch.ones(outputs, 4),
    }
    changes = {"alpha_pattern": {f"{prefix}layers.0.self_attn.q_proj": 2}}
    adapter = Adapter.read(write_adapter(tmp_path / "adapter", tensors, changes), base)
    assert adapter.factors[Q0].scale == 0.5
    other = {f"{PREFIX}vision_tower.q_proj.lora_A.weight": torch.ones(4, 8)}
    error = refusal(write_adapter(tmp_path / "other", tensors | other), base)
    assert "no linear map vision_tower.q_proj" in error


def no_tensors(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()


def pickled(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def cut_short(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def empty(folder: Path) -> None:
    save_file({}, folder / "adapter_model.safetensors")


def integers(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    save_file({name: one.int() for name, one in load_file(file).items()}, file)


def no_config(folder: Path) -> None:
    (folder / "adapter_config.json").unlink()


def named(folder: Path) -> None:
    (folder / "poems").mkdir()
    (folder / "adapter_config.json").rename(folder / "poems" / "adapter_config.json")


def no_json(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{")


def deep_json(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)


def a_pipe(folder: Path) -> None:
    no_tensors(folder)
    os.mkfifo(folder / "adapter_model.safetensors")


def with_model(folder: Path) -> None:
    shutil.copy(folder / "adapter_model.safetensors", folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (no_tensors, "adapter_model.safetensors: no such file"),
        (pickled, "adapter_model.bin: is a pickle"),
        (cut_short, "damaged or cut short"),
        (empty, "holds no factors"),
        (integers, "holds integers"),
        (no_config, "adapter_config.json: no such file; give a folder"),
        (named, "poems"),
        (no_json, "adapter_config.json: unreadable"),
        (deep_json, "adapter_config.json: too many levels of JSON"),
        (a_pipe, "adapter_model.safetensors: is not a regular file"),
        (with_model, "contains a model (safetensors files) and a LoRA adapter"),
    ],
)
def test_damaged_adapters_are_refused_by_file(
    tmp_path: Path,
    base: AdapterBase,
    factors: dict[str, Tensor],
    damage: Callable[[Path], None],
    reason: str,
) -> None:
    damage(write_adapter(tmp_path, factors))
    error = refusal(tmp_path, base)
    assert str(tmp_path) in error
    assert reason in error


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_impossible_names_of_folders_are_refused(base: AdapterBase, name: str) -> None:
    assert "give" in refusal(Path("/", name), base)


def test_each_file_is_opened_once_for_all_tensors(
    tmp_path: Path, base: AdapterBase, factors: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []

    def open_counted(file: Path, **options: str) -> object:
        opened.append(file)
        return safe_open(file, **options)

    monkeypatch.setattr(f"{CHECKPOINT}.safe_open", open_counted)
    Adapter.read(write_adapter(tmp_path, factors), base)
    assert opened == [tmp_path / "adapter_model.safetensors"] * 2


def test_patterns_of_one_key_per_module_are_looked_up() -> None:
    """EVA writes a rank for each module."""
    names = [f"model.layers.{layer}.mlp.map_{number}" for layer in range(80) for number in range(7)]
    keys = {name: number for number, name in enumerate(names, start=1)}
    pattern = Pattern.read(ConfigFile(Path("a"), {"rank_pattern": keys}), "rank_pattern")
    assert [pattern.of(name) for name in names] == [(number,) for number in keys.values()]
    assert max(map(len, pattern.plain.values())) < len(names)


@pytest.mark.parametrize(
    "name", ["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"]
)
def test_a_folder_with_a_model_and_an_adapter_is_refused(
    tmp_path: Path, checkpoints: Checkpoints, name: str
) -> None:
    target = tmp_path / "target"
    shutil.copytree(checkpoints.target, target)
    (target / name).write_text("{}")
    reason = check_pair(target, None, CheckOptions()).reasons[0]
    assert f"{target} contains a model (config.json) and a LoRA adapter ({name})" in reason
    draft = check_pair(checkpoints.target, target, CheckOptions())
    assert f"LoRA adapter ({name})" in draft.reasons[0]
    with pytest.raises(CheckpointError, match=name):
        LlamaConfig.load(target)


def test_the_command_reports_adapters(
    tmp_path: Path, checkpoints: Checkpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = random_factors(checkpoints.target, ["q_proj", "lm_head"])
    good = write_adapter(tmp_path / "good", tensors)
    bad = write_adapter(tmp_path / "bad", tensors, {"use_dora": True})
    arguments = [str(checkpoints.target), "--adapter", str(good)]
    assert check(arguments) == 0
    text = capsys.readouterr().out
    assert "linear maps     lm_head (1), self_attn.q_proj (3)" in text
    assert "trained on      /home/trainer/base" in text
    assert re.search(r"factors         0\.0 MiB in float32, 0\.0 MiB packed in an engine", text)
    assert check([*arguments, "--adapter", str(bad), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["served"] is False
    assert report["adapters"][0]["ranks"] == [4]
    assert report["adapters"][0]["reason"] is None
    assert "use_dora is True" in report["adapters"][1]["reason"]
    assert check([*arguments, "--adapter", str(bad)]) == 1
    printed = capsys.readouterr()
    assert "use_dora is True" in printed.err
    assert "can be served: no" in printed.out
    assert check([*arguments, "--tensor-parallel-size", "2"]) == 1
    printed = capsys.readouterr()
    assert "one rank, and --tensor-parallel-size is 2: use 1, or merge" in printed.err
    assert "can be served: no" in printed.out


def test_adapters_of_models_through_transformers_are_refused(
    tmp_path: Path, checkpoints: Checkpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(CONFIGS / "glm-4.7.json", tmp_path / "config.json")
    adapter = write_adapter(tmp_path / "a", random_factors(checkpoints.target, ["q_proj"]))
    assert check([str(tmp_path), "--adapter", str(adapter)]) == 1
    assert "computed by modules of transformers, which take no LoRA" in capsys.readouterr().err
