"""The memory plan of Llama-3.1-8B with an EAGLE-3 head, by a simulated allocator: no GPU, no files.

`python -m tests.engine.startup.memory_table` writes the table to bench/results.
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from specdecode_api.boot import EngineBoot
from specdecode_engine.graphs.plan import batch_sizes
from specdecode_engine.model.checkpoint.checkpoint import SINGLE, Checkpoint, Shape
from specdecode_engine.model.drafts import eagle_weights
from specdecode_engine.model.drafts.eagle import Eagle3Head
from specdecode_engine.model.drafts.eagle_config import Eagle3Config
from specdecode_engine.model.target.config import LlamaConfig
from specdecode_engine.model.target.llama import Llama, llama_shapes
from specdecode_engine.startup.config import CUDA, EngineConfig, GraphMode, resolve
from specdecode_engine.startup.graph_config import plan_graphs
from specdecode_engine.startup.memory import NotEnoughMemory, plan_limits
from specdecode_engine.startup.policies import make_policy
from tests.engine.startup.caching_allocator import META, MetaMemory

RESULT = Path(__file__).parents[3] / "bench" / "results" / "memory-plan-8b.json"
GIB = 1 << 30
CARDS_GIB = (24, 48, 80)
CONTAINS = (
    "Computed by a simulation of torch's caching allocator, not measured on a GPU: Llama-3.1-8B in "
    "bfloat16 with an EAGLE-3 head of 32,000 tokens, context 8192, 64 requests, 3 draft steps. "
    "The memory that a CUDA context takes is not included."
)

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": [128_001, 128_008, 128_009],
}
EAGLE3_8B = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "draft_vocab_size": 32_000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}


class Loaded(NamedTuple):
    """Memory after a load: what it took, and what the caching allocator keeps from the device."""

    weight_bytes: int
    reserved_bytes: int
    peak_bytes: int


def write_checkpoints(folder: Path) -> tuple[Path, Path]:
    """Write both checkpoints as sparse files: headers, and holes in place of the weights."""
    target, draft = folder / "target", folder / "draft"
    for place, keys in ((target, LLAMA_8B), (draft, EAGLE3_8B)):
        place.mkdir()
        (place / "config.json").write_text(json.dumps(keys))
    llama = LlamaConfig.load(target)
    write_sparse(target, llama_shapes(llama)[0], {})
    head = Eagle3Config.load(draft, llama)
    write_sparse(draft, eagle_weights.eagle3_shapes(head, "midlayer", 4096)[0], {"d2t": "I64"})
    return target, draft


def write_sparse(folder: Path, shapes: Mapping[str, Shape], dtypes: Mapping[str, str]) -> None:
    """Write a safetensors file of bfloat16 tensors without their bytes.

    Args:
        dtypes: of tensors of another type, as the format names it, by the ends of their names.
    """
    header: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        dtype = next((one for suffix, one in dtypes.items() if name.endswith(suffix)), "BF16")
        start, size = end, {"I64": 8, "BF16": 2, "U8": 1}[dtype]
        end += torch.Size(shape).numel() * size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / SINGLE).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def load_fused(config: EngineConfig, target: Path, draft: Path) -> Loaded:
    """Load both models as the engine does, onto meta tensors, and empty the allocator's cache."""
    assert isinstance(config.target, LlamaConfig)
    # Checks of the ids read their values, which meta tensors do not have.
    with patch.object(eagle_weights, "take_target_ids", lambda *_: None), MetaMemory() as memory:
        llama = Llama.load(
            target,
            config=config.target,
            dtype=torch.bfloat16,
            device=META,
            context_length=config.context_length,
        )
        head = Eagle3Head.load(draft, llama)
        assert head.embedding is llama.embedding
        return _loaded(memory, is_emptied=True)


def load_then_join(config: EngineConfig, target: Path, draft: Path) -> Loaded:
    """Load every tensor first, then concatenate what is fused; nothing is returned to the device.

    The engine loaded so before weights were read into fused tensors.
    """
    with MetaMemory() as memory:
        kept: list[Tensor] = []
        for folder in (target, draft):
            kept.append(torch.empty(2, config.context_length, 64, device=META))
            stored = Checkpoint.open(folder).tensors
            kept += _join(
                {n: torch.empty(s.shape, dtype=s.dtype, device=META) for n, s in stored.items()}
            )
        return _loaded(memory, is_emptied=False)


def _join(tensors: dict[str, Tensor]) -> list[Tensor]:
    """Concatenate q, k, v and gate, up of every layer in turn; return what remains."""
    for first in [name for name in tensors if name.endswith("q_proj.weight")]:
        attention = first.removesuffix("q_proj.weight")
        mlp = attention.replace("self_attn", "mlp")
        for prefix, parts in ((attention, ("q", "k", "v")), (mlp, ("gate", "up"))):
            names = [f"{prefix}{part}_proj.weight" for part in parts]
            tensors[prefix] = torch.cat([tensors.pop(name) for name in names])
    return list(tensors.values())


def _loaded(memory: MetaMemory, *, is_emptied: bool) -> Loaded:
    memory.free_expired()
    weights = memory.allocator.allocated_bytes
    if is_emptied:
        memory.allocator.empty_cache()
    return Loaded(weights, memory.allocator.reserved_bytes, memory.allocator.peak_bytes)


def gpu_config(target: Path, draft: Path) -> EngineConfig:
    """Resolve an engine for a GPU; what is chosen for the CPU here is replaced."""
    boot = EngineBoot.model_validate(
        {
            "model": {"path": str(target), "dtype": "bfloat16", "context_length": 8192},
            "speculation": {"algorithm": "EAGLE3", "draft_path": str(draft), "num_steps": 3},
            "scheduling": {"overlap": True},
            "device": "cpu",
        }
    )
    sizes = batch_sizes(boot.scheduling.max_running_requests, None)
    mode = GraphMode(CUDA, "assumed")
    return replace(
        resolve(boot), device=torch.device("cuda"), graph_mode=mode, graph_batch_sizes=sizes
    )


def plan(config: EngineConfig, loaded: Loaded, card_gib: int) -> dict[str, object]:
    """Plan the memory of one card after a load."""
    free = card_gib * GIB - loaded.reserved_bytes
    policy = make_policy(config.boot.speculation, config.table, config.graph_batch_sizes)
    graphs = plan_graphs(config, policy, free)
    sizes = {"free_gib": round(free / GIB, 1), "graphs_gib": round(graphs.reserved_bytes / GIB, 1)}
    try:
        limits = plan_limits(config, loaded.weight_bytes, 0, free, graphs.reserved_bytes)
    except NotEnoughMemory:
        return {**sizes, "kv_tokens": 0}
    return {**sizes, "kv_tokens": (limits.pages - 1) * limits.page_size}


def memory_table(folder: Path) -> dict[str, object]:
    """Compute the table: GiB after each way to load, and the tokens of the KV cache."""
    target, draft = write_checkpoints(folder)
    config = gpu_config(target, draft)
    table: dict[str, object] = {"contains": CONTAINS}
    for name, load in (("before", load_then_join), ("after", load_fused)):
        loaded = load(config, target, draft)
        cards = {f"{gib} GiB": plan(config, loaded, gib) for gib in CARDS_GIB}
        table[name] = {
            "weights_gib": round(loaded.weight_bytes / GIB, 2),
            "peak_gib": round(loaded.peak_bytes / GIB, 2),
            "cached_gib": round((loaded.reserved_bytes - loaded.weight_bytes) / GIB, 2),
            "cards": cards,
        }
    return table


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        RESULT.write_text(json.dumps(memory_table(Path(folder)), indent=2) + "\n")
    print(RESULT, file=sys.stderr)
