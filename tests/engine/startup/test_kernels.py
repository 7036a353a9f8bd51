"""The list of kernels is short, complete and compiled before an engine serves.

It runs in processes of their own: this one interprets kernels, and has no variants.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specdecode_api.boot import EngineBoot
from specdecode_engine.startup.kernel_calls import model_maps
from specdecode_engine.startup.kernel_needs import KernelNeeds
from specdecode_engine.startup.kernels import needs_of_boot

pytest.importorskip("triton")

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
HEAD = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": 32000,
}
ATTENTION = (
    "attend_kernel",
    "merge_splits_kernel",
    "merge_states_kernel",
    "rope_and_store_kv_kernel",
)
MOST_OF_ATTENTION = 20


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    environment["OMP_NUM_THREADS"] = "1"
    return subprocess.run(
        (sys.executable, *command), env=environment, capture_output=True, text=True, check=False
    )


def list_kernels(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return run("-m", "specdecode_engine", "kernels", "--list", *arguments)


def kernels_of(folder: Path, config: dict[str, object]) -> dict[str, Any]:
    """The list for a model of this config."""
    (folder / "config.json").write_text(json.dumps(config))
    ran = list_kernels(str(folder), "--json")
    assert ran.returncode == 0, ran.stderr
    listed: dict[str, Any] = json.loads(ran.stdout)
    return listed


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Folders with config.json alone: of an 8B target and of its EAGLE-3 head."""
    folders = []
    for name, config in (("target", LLAMA_8B), ("head", LLAMA_8B | HEAD)):
        folder = tmp_path_factory.mktemp(name)
        (folder / "config.json").write_text(json.dumps(config))
        folders.append(str(folder))
    return folders[0], folders[1]


@pytest.fixture(scope="module")
def listed(models: tuple[str, str]) -> dict[str, Any]:
    ran = list_kernels(*models, "--json", "--speculative-num-steps", "3")
    assert ran.returncode == 0, ran.stderr
    document: dict[str, Any] = json.loads(ran.stdout)
    return document


def test_an_8b_target_with_an_eagle3_head_needs_few_kernels(listed: dict[str, Any]) -> None:
    assert listed["total"] <= 60
    assert listed["total"] == sum(listed["kernels"].values()) == len(listed["variants"])
    assert sum(listed["kernels"].get(name, 0) for name in ATTENTION) <= MOST_OF_ATTENTION
    assert {"rms_norm_kernel", "measure_kernel", "verify_chain_kernel"} <= set(listed["kernels"])


MIXTURES: dict[str, dict[str, Any]] = {
    "native": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
    "through transformers": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
    },
}


@pytest.mark.parametrize("keys", MIXTURES.values(), ids=MIXTURES)
def test_a_mixture_has_its_products_with_and_without_the_gate(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B | keys))
    ran = list_kernels(str(tmp_path), "--json")
    assert ran.returncode == 0, ran.stderr
    listed = json.loads(ran.stdout)
    wanted = {"sort_pairs_kernel": 1, "map_pairs_kernel": 2, "combine_kernel": 1}
    assert {name: listed["kernels"][name] for name in wanted} == wanted
    products = [one["signature"] for one in listed["variants"] if "map_pairs" in one["kernel"]]
    assert sorted("GATE: silu" in one for one in products) == [False, True]
    assert all("bias_ptr: None" in one for one in products)


def test_recurrent_layers_have_their_kernels(tmp_path: Path) -> None:
    """A tree has kernels of its own for its nodes, a chain those of a prompt."""
    config = LLAMA_8B | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
    }
    listed = kernels_of(tmp_path, config)
    wanted = {"convolve_kernel": 1, "gated_delta_kernel": 1}
    assert {name: listed["kernels"][name] for name in wanted} == wanted
    assert "gated_delta_tree_kernel" not in listed["kernels"]


def test_short_convolutions_have_their_kernels(tmp_path: Path) -> None:
    config = LLAMA_8B | {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "num_hidden_layers": 2,
        "layer_types": ["conv", "full_attention"],
        "conv_L_cache": 3,
    }
    listed = kernels_of(tmp_path, config)
    wanted = {"convolve_kernel": 1, "keep_rows_kernel": 1}
    assert {name: listed["kernels"][name] for name in wanted} == wanted
    assert "gated_delta_kernel" not in listed["kernels"]


def test_layers_with_a_window_have_attention_of_their_own(tmp_path: Path) -> None:
    windows = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 16}
    config = LLAMA_8B | windows | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ran = list_kernels(str(tmp_path), "--json")
    assert ran.returncode == 0, ran.stderr
    listed = json.loads(ran.stdout)["variants"]
    attention = [one["signature"] for one in listed if one["kernel"] == "attend_kernel"]
    windowed = [one for one in attention if "window: i32/16" in one]
    assert 0 < len(windowed) < len(attention)
    assert all("window: None" in one for one in attention if one not in windowed)


def test_layers_with_a_softcap_have_attention_of_their_own(tmp_path: Path) -> None:
    """All have a softcap, and every second one a window."""
    config = LLAMA_8B | {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "num_hidden_layers": 2,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    ran = list_kernels(str(tmp_path), "--json")
    assert ran.returncode == 0, ran.stderr
    listed = json.loads(ran.stdout)["variants"]
    attention = [one["signature"] for one in listed if one["kernel"] == "attend_kernel"]
    assert all("softcap: fp32" in one for one in attention)
    assert len([one for one in attention if "window: None" in one]) == len(attention) / 2 > 0


def test_drafts_of_blocks_have_kernels_for_blocks_and_contexts(
    models: tuple[str, str], tmp_path: Path
) -> None:
    """A layer whose rows see both ways within a window merges two attentions."""
    config = LLAMA_8B | {
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 2048,
        "is_causal": False,
        "block_size": 16,
        "dflash_config": {"mask_token_id": 128255, "target_layer_ids": [1, 15, 29]},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    ran = list_kernels(models[0], str(tmp_path), "--json")
    assert ran.returncode == 0, ran.stderr
    listed = json.loads(ran.stdout)["variants"]
    reasons = {
        kernel: {why for one in listed if one["kernel"] == kernel for why in one["reasons"]}
        for kernel in (*ATTENTION, "rms_norm_kernel")
    }
    assert "blocks of the draft" in reasons["attend_kernel"] & reasons["merge_states_kernel"]
    for kernel in ("rope_and_store_kv_kernel", "rms_norm_kernel"):
        assert "context of the draft" in reasons[kernel]
    assert "draft steps of the draft" not in reasons["attend_kernel"]


def test_kernels_are_listed_for_the_part_of_a_rank(models: tuple[str, str]) -> None:
    def needs(ranks: int) -> KernelNeeds:
        document = {
            "model": {"path": models[0]},
            "speculation": {"algorithm": "EAGLE3", "draft_path": models[1]},
            "parallelism": {"tensor": ranks},
        }
        return needs_of_boot(EngineBoot.model_validate(document))

    whole, divided = needs(1).models, needs(8).models
    assert divided["draft"] == whole["draft"]
    heads, kv_heads = LLAMA_8B["num_attention_heads"], LLAMA_8B["num_key_value_heads"]
    decoder = divided["target"].decoder
    assert (decoder.num_attention_heads, decoder.num_key_value_heads) == (heads // 8, kv_heads // 8)
    rows = {one.outputs for one in model_maps(divided["target"])}
    assert rows == {(32 // 8 + 2) * 128, 2 * 14336 // 8, 4096, 128256 // 8}


def test_every_kernel_has_a_signature_of_its_own_and_a_reason(listed: dict[str, Any]) -> None:
    named = [(one["kernel"], one["signature"]) for one in listed["variants"]]
    assert len(set(named)) == len(named)
    assert all(one["reasons"] for one in listed["variants"])


def test_the_list_is_readable(models: tuple[str, str]) -> None:
    ran = list_kernels(models[0], "--capability", "80")
    assert ran.returncode == 0, ran.stderr
    assert "for greedy sampling" in ran.stdout
    assert "DIM: 128" in ran.stdout
    assert ran.stdout.splitlines()[-1].endswith("in all, on compute capability 8.0")


def test_bad_input_is_refused_with_the_remedy(models: tuple[str, str], tmp_path: Path) -> None:
    missing = list_kernels(str(tmp_path / "absent"))
    assert missing.returncode == 2
    assert "absent" in missing.stderr
    bad_page = list_kernels(*models, "--page-size", "3")
    assert bad_page.returncode == 2
    assert "page_size must be a power of two" in bad_page.stderr
    capability = list_kernels(*models, "--capability", "75")
    assert capability.returncode == 2
    assert "80, 86" in capability.stderr


FLOAT4 = """
import json, sys
from dataclasses import replace
from specdecode_api.boot import EngineBoot
from specdecode_engine.startup.draft_methods.registry import METHODS
from specdecode_engine.startup.kernel_calls import op_calls
from specdecode_engine.startup.kernels import needs_of_boot
from specdecode_kernels import MXFP4, NVFP4
from specdecode_kernels.triton.variants import list_variants

boot = EngineBoot.model_validate({"model": {"path": sys.argv[1]}})
needs = replace(needs_of_boot(boot), kept=(MXFP4, NVFP4))
variants = list_variants(op_calls(needs, 90, METHODS["NONE"]), 90)
print(json.dumps([[one.kernel, one.signature] for one in variants if "float4" in one.signature]))
"""


def test_weights_of_float4_have_their_maps_and_experts(tmp_path: Path) -> None:
    """Of few and of many rows, and of both products of a mixture, with factors and without."""
    config = LLAMA_8B | next(iter(MIXTURES.values()))
    (tmp_path / "config.json").write_text(json.dumps(config))
    ran = run("-c", FLOAT4, str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    listed = json.loads(ran.stdout)
    for kernel, kinds in (
        ("map_quantized_kernel", ("ROWS: 16", "ROWS: 32", "ROWS: 64")),
        ("map_pairs_kernel", ("GATE: silu", "GATE: None")),
    ):
        found = [signature for name, signature in listed if name == kernel]
        for kind in kinds:
            has_factors = {"factors_ptr: None" not in one for one in found if kind in one}
            assert has_factors == {False, True}
    assert all("values_ptr: *u8/16, scales_ptr: *u8/16" in one for _, one in listed)


COMPILE = """
import functools, json, sys
import torch, triton
from checks.compile_gate.compiler import _AbsentDevice
from specdecode_engine.stats.kernel_compiles import AFTER_READY
from specdecode_kernels.triton.variants import META, compile_variants, list_variants, meta_backend

device = _AbsentDevice()
device.capability = 90
triton.runtime.driver.set_active(device)
ops = meta_backend(90)
x, weight = (torch.empty(*shape, dtype=torch.bfloat16, device=META) for shape in ((3, 64), (64,)))
calls = [("a norm", functools.partial(ops.rms_norm, x, weight, 1e-5)),
         ("a gate", functools.partial(ops.silu_and_mul, x, x))]
variants = list_variants(calls, 90)
done = sum(1 for _ in compile_variants(variants, 2))
AFTER_READY.watch()

def launch(one, *arguments):
    one.function.run(*arguments, grid=(1,), warmup=True, **one.options)

for one in variants:
    launch(one, *one.arguments)
listed = AFTER_READY.total
wide = (one.float() if isinstance(one, torch.Tensor) else one for one in variants[1].arguments)
launch(variants[1], *wide)
print(json.dumps({"compiled": done, "listed": listed, "unlisted": AFTER_READY.total - listed}))
"""


def test_what_is_listed_is_compiled_once_and_what_is_not_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    ran = run("-c", COMPILE)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {"compiled": 2, "listed": 0, "unlisted": 1}
    assert "compiled silu_and_mul_kernel(gate_ptr: *fp32" in ran.stderr
    assert len(list(tmp_path.rglob("*.cubin"))) == 3


SHADOW = """
import json, pathlib, sys
from tests.shadow_cuda.suite.cases import CASES
from tests.shadow_cuda.suite.outcome import Bench
bench = Bench(pathlib.Path(sys.argv[1]))
cases = {case.name: case for case in CASES}
found = {}
for name in sys.argv[2:]:
    outcome = bench.run(cases[name], "triton")
    found[name] = [outcome.violations, outcome.compiles_after_start]
print(json.dumps(found))
"""


def test_engines_on_the_shadow_device_compile_nothing_while_serving(tmp_path: Path) -> None:
    names = (
        "eagle-tree-fp8",
        "catch-up",
        "standalone-bf16-eager",
        "none-chain-off-sync-sampled",
        "experts-tree",
        "transformers-experts",
        "transformers-eagle3-tree",
    )
    ran = run("-c", SHADOW, str(tmp_path), *names)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {name: [[], []] for name in names}
