"""Whether published models can be served, and in what memory, from config.json and headers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from scripts import model_table
from specdecode_api.boot import EngineBoot
from specdecode_engine.cli.check.command import check
from specdecode_engine.model.checkpoint.checkpoint import Checkpoint, Shape
from specdecode_engine.model.drafts.eagle_config import Eagle3Config
from specdecode_engine.model.target.config import LlamaConfig
from specdecode_engine.model.target.llama import llama_shapes
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.model_check import CheckOptions, PairCheck, check_pair
from tests.engine.checkpoints import Checkpoints
from tests.engine.model.checkpoint.quantized.writers import CASES, write_quantized
from tests.engine.mtp_checkpoints import export_module, with_modules
from tests.engine.startup.memory_table import write_sparse

CONFIGS = Path(__file__).parents[2] / "configs"
Folder = Callable[[str], Path]

SERVED = {
    "llama-3.2-3b": "native",
    "mistral-7b-v0.1": "native",
    "qwen2.5-3b": "native",
    "qwen2.5-7b": "native",
    "qwen2.5-vl-7b": "native",
    "qwen3-vl-4b": "native",
    "qwen3-4b": "native",
    "qwen3-4b-int8": "native",
    "qwen3-8b": "native",
    "gemma-2-9b": "native",
    "gemma-3-1b": "native",
    "gemma-3-4b": "native",
    "qwen3-30b-a3b": "native",
    "gpt-oss-20b": "native",
    "gpt-oss-120b": "native",
    "glm-4.7": "transformers",
    "minimax-m2.7": "transformers",
    "llama-4-scout": "transformers",
    "qwen3-next-80b-a3b": "transformers",
    "qwen3.5-397b-a17b": "transformers",
    "kimi-k2": "transformers",
    "glm-4.7-flash": "transformers",
}

REFUSED: dict[str, tuple[dict[str, object], list[str]]] = {
    "qwen3-next-80b-a3b": (
        {"mamba_d_state": 128, "is_encoder_decoder": True},
        ["recurrent layers of an unknown kind (mamba_d_state)", "an encoder"],
    ),
    "llama-3.2-3b": (
        {"layer_types": ["full_attention", "lightning"]},
        ["recurrent layers of an unknown kind (layer_types has lightning)"],
    ),
}
"""Published models with keys that what is computed of them does not have."""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Make a checkpoint's folder with the config.json of a published model alone."""

    def make(name: str) -> Path:
        place = tmp_path / name
        place.mkdir()
        shutil.copy(CONFIGS / f"{name}.json", place / "config.json")
        return place

    return make


ROUTED = {
    "glm-4.7": 89 * 8,
    "gpt-oss-120b": 36 * 4,
    "gpt-oss-20b": 24 * 4,
    "kimi-k2": 60 * 8 * 2,  # of 384 experts
    "glm-4.7-flash": 46 * 4,
    "llama-4-scout": 48,
    "minimax-m2.7": 62 * 8,
    "qwen3-30b-a3b": 48 * 8,
    "qwen3-next-80b-a3b": 48 * 10 * 2,
    "qwen3.5-397b-a17b": 60 * 10 * 2,
}
"""Bytes of the ids of experts of one token: layers with experts, times experts per token."""


def only_target(target: Path, options: CheckOptions | None = None) -> PairCheck:
    return check_pair(target, None, options or CheckOptions())


def meta_bytes(target: Path) -> int:
    """Bytes of the parameters of transformers' model for text, each counted once."""
    keys = json.loads((target / "config.json").read_text())
    if keys["model_type"] == "kimi_k2":  # a name that transformers does not know
        config: Any = transformers.AutoConfig.for_model(**{**keys, "model_type": "deepseek_v3"})
    else:
        config = transformers.AutoConfig.from_pretrained(target)
    with torch.device("meta"):
        if "_vl" in config.model_type:  # which transformers has as a whole only
            whole = transformers.AutoModelForImageTextToText
            model = whole.from_config(config, dtype=torch.bfloat16)
        else:
            text = config.get_text_config(decoder=True)
            model = transformers.AutoModelForCausalLM.from_config(text, dtype=torch.bfloat16)
    parts = model.named_parameters()
    return sum(one.numel() * one.element_size() for name, one in parts if "visual" not in name)


@pytest.mark.parametrize("name", SERVED)
def test_published_models_are_served_in_the_memory_of_their_parameters(
    name: str, folder: Folder
) -> None:
    target = folder(name)
    pair = only_target(target)
    assert pair.is_served
    assert pair.target.implementation == SERVED[name]
    assert not pair.target.has_tensors
    assert pair.target.dtype == torch.bfloat16
    assert pair.target.weight_bytes == meta_bytes(target)
    assert pair.target.routed_bytes_per_token == ROUTED.get(name)


def test_a_model_without_a_type_is_counted_in_that_of_its_kind(tmp_path: Path) -> None:
    """Quantized weights were made of bfloat16; the type of plain ones is in the tensors alone."""
    keys = json.loads((CONFIGS / "gpt-oss-20b.json").read_text())
    assert "dtype" not in keys
    assert "torch_dtype" not in keys
    del keys["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(keys))
    checked = only_target(tmp_path).target
    assert checked.dtype == torch.float32
    assert checked.weight_bytes == 2 * meta_bytes(tmp_path)


@pytest.mark.parametrize("name", REFUSED)
def test_models_are_refused_with_all_reasons(name: str, folder: Folder) -> None:
    place, (changes, reasons) = folder(name), REFUSED[name]
    keys = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(keys | changes))
    pair = only_target(place)
    assert not pair.is_served
    assert pair.target.implementation is None
    assert pair.target.model_type == keys["model_type"]
    for reason in reasons:
        assert reason in pair.reasons[0]


def test_the_memory_of_quantized_weights_is_that_after_dequantization(folder: Folder) -> None:
    quantized, plain = only_target(folder("qwen3-4b-int8")), only_target(folder("qwen3-4b"))
    stored = "compressed-tensors (int-quantized of 8 bits, a scale per channel)"
    assert quantized.target.quantization == stored
    assert plain.target.quantization is None
    assert quantized.target.weight_bytes == plain.target.weight_bytes


@pytest.mark.parametrize(("name", "most_gib"), [("gpt-oss-20b", 15), ("gpt-oss-120b", 68)])
def test_experts_in_mxfp4_take_the_memory_of_their_files(
    name: str, most_gib: int, folder: Folder
) -> None:
    place = folder(name)
    shapes = dict[str, Shape]()
    for tensor, shape in llama_shapes(LlamaConfig.load(place))[0].items():
        if not tensor.endswith(("experts.gate_up_proj", "experts.down_proj")):
            shapes[tensor] = shape
            continue
        experts, inputs, outputs = shape
        shapes[f"{tensor}_blocks"] = (experts, outputs, inputs // 32, 16)
        shapes[f"{tensor}_scales"] = (experts, outputs, inputs // 32)
    write_sparse(place, shapes, {"_blocks": "U8", "_scales": "U8"})
    checked = only_target(place).target
    assert checked.keeps_quantized
    assert checked.weight_bytes is not None
    stored_bytes = (place / "model.safetensors").stat().st_size
    assert stored_bytes * 0.99 < checked.weight_bytes < min(stored_bytes * 1.03, most_gib << 30)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"model_type": "deepseek_v32", "kv_lora_rank": 512, "index_topk": 2048}, "(index_topk)"),
        ({"model_type": "longcat_flash", "zero_expert_num": 256}, "(zero_expert_num)"),
        ({"model_type": "kimi_linear", "layer_types": ["linear_attention"]}, "linear_attention"),
    ],
)
def test_other_attention_to_latents_is_refused_by_its_key(
    keys: dict[str, object], reason: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(keys))
    (found,) = only_target(tmp_path).reasons
    assert found.startswith(f"{tmp_path}/config.json: model_type is '{keys['model_type']}'")
    assert reason in found


def test_latents_are_counted_once(folder: Folder) -> None:
    """A row of the cache is a latent of 512 and a rotated part of 64, in bfloat16."""
    checked = only_target(folder("glm-4.7-flash"))
    assert checked.target.kv_bytes_per_token == 47 * 576 * 2
    assert checked.mtp is not None
    assert checked.mtp.kv_bytes_per_token == 576 * 2


def test_every_configuration_is_tested() -> None:
    used = {*SERVED, *REFUSED, "llama-3.3-70b", "qwen3-32b"}
    heads = set(model_table.DRAFTS)
    assert {file.stem for file in CONFIGS.glob("*.json")} == used | heads
    origins = (CONFIGS / "README.md").read_text()
    assert all(f"`{name}`" in origins for name in used | heads)


def test_the_documentation_has_the_answers() -> None:
    assert model_table.main(["--check"]) == 0, "run make manifests"


def test_a_published_head_fits_its_target(folder: Folder) -> None:
    pair = check_pair(folder("qwen3-32b"), folder("specforge-qwen3-32b-eagle3"), CheckOptions())
    assert pair.is_served
    assert pair.algorithm == "EAGLE3"
    assert pair.draft is not None
    hidden, inner, q, kv = 5120, 25600, 64 * 80, 8 * 80
    attention = 2 * hidden * (q + 2 * kv) + q * hidden
    parameters = attention + 3 * hidden * inner + 3 * hidden * hidden + 32000 * hidden + 4 * hidden
    assert pair.draft.parameters == parameters
    assert pair.draft.kv_bytes_per_token == 2 * kv * 2


HEADS_OF_MIXTURES = {
    "specforge-qwen3-30b-a3b-eagle3": (1, 23, 44),
    "specforge-qwen3-30b-a3b-eagle3.1": (1, 23, 44),
    "specforge-gpt-oss-120b-eagle3": (1, 17, 33),
    "speculators-gpt-oss-20b-eagle3": (1, 11, 20),
}
"""With the layers whose outputs they read."""


@pytest.mark.parametrize("name", HEADS_OF_MIXTURES)
def test_a_published_head_of_a_mixture_fits_its_target(name: str, folder: Folder) -> None:
    target, head = folder(model_table.DRAFTS[name]), folder(name)
    pair = check_pair(target, head, CheckOptions())
    assert pair.is_served, pair.reasons
    assert pair.algorithm == "EAGLE3"
    assert pair.target.implementation == "native"
    config = Eagle3Config.load(head, LlamaConfig.load(target))
    assert config.aux_spec.layers == HEADS_OF_MIXTURES[name]
    assert config.draft_vocab_size == 32000


def test_a_head_with_experts_of_its_own_is_refused_by_name(folder: Folder) -> None:
    pair = check_pair(
        folder("gpt-oss-20b"), folder("specforge-gpt-oss-20b-eagle3-moe"), CheckOptions()
    )
    assert not pair.is_served
    assert "GptOssForCausalLMEagle3" in pair.reasons[0]


def test_rows_that_depend_on_their_batch_are_found_without_weights(tmp_path: Path) -> None:
    """A config.json that declares nothing unusual, of a type with operations that are not ours."""
    config = transformers.FalconConfig(
        num_hidden_layers=2, hidden_size=32, num_attention_heads=4, vocab_size=50
    )
    config.save_pretrained(tmp_path)
    pair = only_target(tmp_path)
    assert not pair.is_served
    assert "falcon" in pair.reasons[0]


def test_a_published_head_that_ties_a_smaller_vocabulary_is_refused(folder: Folder) -> None:
    pair = check_pair(folder("qwen3-4b"), folder("specforge-qwen3-4b-eagle3"), CheckOptions())
    assert not pair.is_served
    assert pair.target.reason is None
    assert "tie_word_embeddings is True" in pair.reasons[0]


def test_a_head_of_another_target_is_refused(folder: Folder) -> None:
    pair = check_pair(folder("llama-3.3-70b"), folder("specforge-qwen3-32b-eagle3"), CheckOptions())
    assert pair.draft is not None
    assert pair.draft.reason is not None
    assert "vocab_size is 151936; the target's is 128256" in pair.draft.reason


def test_types_decide_sizes(folder: Folder) -> None:
    target = folder("qwen3-8b")
    plain = only_target(target).target
    wide = only_target(target, CheckOptions(torch.float32, torch.float8_e4m3fn)).target
    assert plain.weight_bytes is not None
    assert wide.weight_bytes == 2 * plain.weight_bytes
    assert plain.kv_bytes_per_token == 36 * 2 * 8 * 128 * 2
    assert wide.kv_bytes_per_token == 36 * 2 * 8 * 128


def test_integers_decide_the_size_of_all_but_the_embedding(folder: Folder) -> None:
    target = folder("qwen3-8b")
    sizes = {
        name: only_target(target, CheckOptions(quantization=name)).target
        for name in ("auto", "int8", "int4")
    }
    parameters, embedding = sizes["auto"].parameters, 151_936 * 4096  # and a head as large
    assert parameters is not None
    int8 = 2 * embedding + parameters - embedding
    int4 = 3 * embedding + (parameters - 2 * embedding) * (1 / 2 + 2 / 32)
    for name, wanted in (("int8", int8), ("int4", int4)):
        assert sizes[name].weight_bytes == pytest.approx(wanted, rel=0.002)
        assert sizes[name].parameters == parameters


@pytest.mark.parametrize(("ranks", "kv_heads"), [(4, 2), (16, 1)])
def test_sizes_are_those_of_one_of_several_ranks(folder: Folder, ranks: int, kv_heads: int) -> None:
    """Of 16 ranks two have the same KV head of 8; the embedding is whole."""
    target = folder("qwen3-8b")
    whole = only_target(target).target
    divided = only_target(target, CheckOptions(ranks=ranks)).target
    assert divided.parameters == whole.parameters is not None
    assert divided.kv_bytes_per_token == 36 * 2 * kv_heads * 128 * 2
    norms, embedding = 36 * (2 * 4096 + 2 * 128) + 4096, 151_936 * 4096
    repeated = 36 * 2 * (kv_heads * ranks - 8) * 128 * 4096
    maps = (whole.parameters - norms - embedding + repeated) // ranks
    assert divided.weight_bytes == 2 * (maps + norms + embedding)


def test_sizes_of_a_rank_are_known_of_models_through_transformers(folder: Folder) -> None:
    """Of GLM-4.7 norms, routers with their biases, and the embedding are whole."""
    target = folder("glm-4.7")
    whole, divided = (only_target(target, CheckOptions(ranks=n)).target for n in (1, 4))
    assert divided.kv_bytes_per_token is not None
    assert divided.kv_bytes_per_token * 4 == whole.kv_bytes_per_token
    assert divided.parameters == whole.parameters is not None
    assert divided.weight_bytes is not None
    assert divided.weight_bytes == pytest.approx(whole.parameters / 2, rel=0.01)


def test_a_rank_has_its_part_of_the_states(folder: Folder) -> None:
    """Of four ranks two have the same KV head of 2; norms, routers and the embedding are whole."""
    target = folder("qwen3-next-80b-a3b")
    whole, divided = (only_target(target, CheckOptions(ranks=n)).target for n in (1, 4))
    assert divided.state_bytes_per_request is not None
    assert divided.state_bytes_per_request * 4 == whole.state_bytes_per_request
    assert divided.kv_bytes_per_token is not None
    assert divided.kv_bytes_per_token * 2 == whole.kv_bytes_per_token
    assert divided.weight_bytes is not None
    assert whole.parameters is not None
    assert divided.weight_bytes == pytest.approx(whole.parameters / 2, rel=0.02)


@pytest.mark.parametrize("name", ["w4a16-group", "fp8-deepseek"])
def test_groups_that_ranks_would_cut_are_not_kept(
    name: str, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """Of 96 inputs in groups of 32, one of two ranks has one group and a half."""
    write_quantized(CASES[name], checkpoints.target, tmp_path / name)
    whole, divided = (
        check_pair(tmp_path / name, None, CheckOptions(ranks=ranks)).target for ranks in (1, 2)
    )
    assert whole.keeps_quantized
    assert not divided.keeps_quantized


@pytest.mark.parametrize(
    ("name", "ranks", "reason"),
    [
        ("qwen3-8b", 3, "num_attention_heads 32 cannot be divided among 3 ranks; set"),
        ("glm-4.7", 5, "num_attention_heads 96 cannot be divided among 5 ranks; set"),
        ("qwen3-next-80b-a3b", 32, "num_attention_heads 16 cannot be divided among 32 ranks; set"),
    ],
)
def test_models_that_cannot_be_divided_are_refused(
    folder: Folder, name: str, ranks: int, reason: str
) -> None:
    (found,) = only_target(folder(name), CheckOptions(ranks=ranks)).reasons
    assert reason in found


@pytest.mark.parametrize("draft", ["eagle3", "frozen_kv_mtp"])
def test_a_draft_is_whole_on_every_rank(checkpoints: Checkpoints, draft: str) -> None:
    """One that reads the target's keys and values is refused."""
    place: Path = getattr(checkpoints, draft)
    whole, divided = (
        check_pair(checkpoints.target, place, CheckOptions(ranks=ranks)) for ranks in (1, 2)
    )
    assert whole.is_served
    if draft == "eagle3":
        assert divided.draft == whole.draft
    else:
        assert "FROZEN_KV_MTP reads all keys and values" in divided.reasons[0]


@pytest.mark.parametrize(
    "draft",
    ["draft", "eagle", "eagle3", "peagle", "dflash", "dspark", "mtp_chain", "frozen_kv_mtp"],
)
def test_a_pair_is_checked_by_its_headers(
    checkpoints: Checkpoints, draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No weight is read, and the KV cache is as large as the engine's."""

    def refuse(*_: object) -> None:
        raise AssertionError("weights must not be read")

    place: Path = getattr(checkpoints, draft)
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "read", refuse)
        pair = check_pair(checkpoints.target, place, CheckOptions(torch.float32))
    assert pair.is_served
    assert all(model.has_tensors for model in pair.models)
    algorithm = {"draft": "STANDALONE"}.get(draft, draft.upper())
    assert pair.algorithm == algorithm
    boot = {
        "model": {"path": str(checkpoints.target), "dtype": "float32"},
        "speculation": {"algorithm": algorithm, "draft_path": str(place)},
        "memory": {"page_size": 1},
        "device": "cpu",
    }
    facts: Any = build_core(EngineBoot.model_validate(boot)).facts
    token_bytes = sum(model.kv_bytes_per_token or 0 for model in pair.models)
    assert facts["kv_cache_bytes"] == facts["kv_pages"] * token_bytes


def test_tensors_that_do_not_fit_are_named(checkpoints: Checkpoints, tmp_path: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(checkpoints.target, target)
    tensors = load_file(target / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, target / "model.safetensors")
    pair = only_target(target)
    assert "lacks model.norm.weight" in pair.reasons[0]
    assert pair.target.architecture == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("file", "reason"),
    [("model-q4_k_m.gguf", "GGUF is not supported"), ("adapter_config.json", "a LoRA adapter is")],
)
def test_other_formats_are_refused_by_name(tmp_path: Path, file: str, reason: str) -> None:
    (tmp_path / file).write_text("{}")
    assert f"{tmp_path / file}: {reason}" in only_target(tmp_path).reasons[0]


def test_the_path_of_a_gguf_file_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    assert f"{file}: GGUF is not supported" in only_target(file).reasons[0]


def test_the_command_prints_the_report(
    checkpoints: Checkpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(checkpoints.target), str(checkpoints.eagle3)]
    assert check([*paths, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["served"]
    assert report["algorithm"] == "EAGLE3"
    models = report["target"], report["draft"]
    assert report["weight_bytes"] == sum(model["weight_bytes"] for model in models)
    assert check([*paths, "--dtype", "bfloat16"]) == 0
    text = capsys.readouterr().out
    assert "implementation  native" in text
    assert text.endswith("can be served: yes\n")
    assert check([str(checkpoints.target), "--tp-size", "2"]) == 0
    assert "MiB on each of 2 ranks, " in capsys.readouterr().out


def test_the_command_prints_the_memory_of_ids_of_experts(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(folder("qwen3-30b-a3b"))
    assert check([target]) == 0
    assert "routed experts  384 bytes per token" in capsys.readouterr().out
    assert check([target, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["target"]["routed_experts_bytes_per_token"] == 384


def test_modules_are_counted_in_the_text_model_of_a_config_alone(folder: Folder) -> None:
    place = folder("qwen3.5-397b-a17b")
    assert only_target(place).mtp is None
    keys = json.loads((place / "config.json").read_text())
    keys["text_config"] |= {"mtp_num_hidden_layers": 1, "shared_expert_intermediate_size": 1024}
    (place / "config.json").write_text(json.dumps(keys))
    module = only_target(place).mtp
    assert module is not None
    assert (module.reason, module.kv_bytes_per_token) == (None, 2 * 2 * 256 * 2)


def test_states_are_counted_by_request(folder: Folder) -> None:
    target = only_target(folder("qwen3-next-80b-a3b")).target
    matrices, inputs = 32 * 128 * 128 * 4, 3 * (2 * 16 * 128 + 32 * 128) * 2
    assert target.state_bytes_per_request == 36 * (matrices + inputs)
    assert only_target(folder("qwen3-4b")).target.state_bytes_per_request is None


def test_the_command_fails_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check([str(tmp_path), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["served"] is False
    assert report["reasons"][0].startswith(f"{tmp_path / 'config.json'}: no such file")
    assert check([str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert shown.out.endswith("can be served: no\n")
    assert "no such file" in shown.err


def test_a_head_of_two_layers_in_a_pickle_is_counted(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    head = Path(shutil.copytree(checkpoints.eagle3, tmp_path / "head"))
    keys = json.loads((head / "config.json").read_text())
    (head / "config.json").write_text(json.dumps({**keys, "num_hidden_layers": 2}))
    tensors = load_file(head / "model.safetensors")
    layer = {name: t for name, t in tensors.items() if name.startswith("midlayer.")}
    second = {name.replace("midlayer", "layers.1"): t for name, t in layer.items()}
    del second["layers.1.hidden_norm.weight"]
    for part in "qkv":
        name = f"layers.1.self_attn.{part}_proj.weight"
        second[name] = second[name][:, :64].clone()
    (head / "model.safetensors").unlink()
    torch.save({**tensors, **second}, head / "pytorch_model.bin")
    one = check_pair(checkpoints.target, checkpoints.eagle3, CheckOptions()).draft
    two = check_pair(checkpoints.target, head, CheckOptions()).draft
    assert one is not None
    assert two is not None
    assert two.reason is None
    assert two.has_tensors
    assert one.parameters is not None
    assert two.parameters == one.parameters + sum(t.numel() for t in second.values())
    assert one.kv_bytes_per_token is not None
    assert two.kv_bytes_per_token == 2 * one.kv_bytes_per_token


def test_a_targets_own_mtp_modules_are_reported(
    checkpoints: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = only_target(checkpoints.target)
    assert plain.mtp is None
    folder = with_modules(checkpoints.target, tmp_path / "with", "deepseek", 3)
    pair = only_target(folder)
    assert pair.target.parameters == plain.target.parameters
    module = load_file(folder / "model.safetensors")
    own = [one.numel() for name, one in module.items() if name.startswith("model.layers.3.")]
    assert pair.mtp is not None
    assert (pair.mtp.parameters, pair.mtp.kv_bytes_per_token) == (sum(own), 2 * 2 * 16 * 4)
    assert check([str(folder)]) == 0
    assert "MTP modules of the target" in capsys.readouterr().out
    assert check([str(folder), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["algorithm"], report["mtp"]["parameters"]) == ("NONE", sum(own))


def test_a_target_is_served_although_its_mtp_modules_are_not(
    checkpoints: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = with_modules(checkpoints.target, tmp_path / "with", "deepseek", 3)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.3.hnorm.weight"]
    save_file(tensors, folder / "model.safetensors")
    assert check([str(folder)]) == 0
    assert "lacks model.layers.3.hnorm.weight" in capsys.readouterr().out


def test_an_export_of_a_module_is_an_mtp_draft(checkpoints: Checkpoints, tmp_path: Path) -> None:
    folder = export_module(checkpoints.target, tmp_path / "export")
    pair = check_pair(checkpoints.target, folder, CheckOptions())
    assert (pair.algorithm, pair.is_served) == ("MTP", True)


@pytest.mark.parametrize("draft", ["eagle", "eagle3", "frozen_kv_mtp"])
def test_a_draft_alone_is_refused_with_its_algorithm(checkpoints: Checkpoints, draft: str) -> None:
    pair = check_pair(getattr(checkpoints, draft), None, CheckOptions())
    assert not pair.is_served
    reason = f"is a draft of algorithm {draft.upper()}, not a target; give its target first"
    assert reason in pair.reasons[0]
