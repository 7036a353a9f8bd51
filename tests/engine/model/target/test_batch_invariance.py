"""In float32 on CPU a token's logits are the same bits however it was computed.

Text must not depend on the batch, on how a prompt was cut, or on how many drafted tokens a verify
pass took along. This holds to the last bit on the machine at hand, or this fails.
"""

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from checks.lossless.poison import poison
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.target.config import LlamaConfig
from specdecode_engine.model.target.llama import Llama, llama_shapes
from specdecode_kernels import choose_backend

CPU = torch.device("cpu")
LENGTH = 90
Spans = list[tuple[int, int, int]]


EXPERTS: dict[str, object] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
    "moe_intermediate_size": 50,
    "mlp_only_layers": [0],
}
SINKS: dict[str, object] = {
    "architectures": ["GptOssForCausalLM"],
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "sliding_window": 40,
}
GEMMA: dict[str, object] = {
    "architectures": ["Gemma2ForCausalLM"],
    "tie_word_embeddings": False,
    "query_pre_attn_scalar": 16,
    "sliding_window": 40,
}


@pytest.fixture(params=["plain", "packed", "packed qwen3_moe", "packed gpt_oss", "gemma2"])
def model(
    request: pytest.FixtureRequest, tmp_path: Path, config: dict[str, object], write: Any
) -> Llama:
    """A random Llama, Qwen3-MoE, gpt-oss or Gemma 2, wide enough that sums have an order."""
    if "qwen3" in request.param:
        config |= EXPERTS
    if "gpt_oss" in request.param:
        config |= SINKS
    if "gemma2" in request.param:
        config |= GEMMA
    sizes = {"vocab_size": 300, "hidden_size": 96, "intermediate_size": 200, "head_dim": 16}
    config |= {**sizes, "num_hidden_layers": 2, "max_position_embeddings": 160}
    shapes, _ = llama_shapes(LlamaConfig.load(write(tmp_path, config, {})))
    generator = torch.Generator().manual_seed(4)
    tensors = {n: torch.randn(s, generator=generator) * 0.3 for n, s in shapes.items()}
    choice = choose_backend("auto", CPU, torch.float32, 16)
    linears = Linears() if request.param == "plain" else Linears.of(choice)
    assert request.param == "plain" or linears.plain_weights is None
    return Llama.load(write(tmp_path, config, tensors), device=CPU, linears=linears)


def compute(model: Llama, cached: Any, ids: Tensor, rounds: list[Spans]) -> Tensor:
    """Run forwards of spans; return the logits of text 0, in order of position."""
    logits = []
    for spans in rounds:
        positions, view = cached.view(*spans)
        rows = torch.cat([ids[text, start:end] for text, start, end in spans])
        hidden, _ = model.forward(rows, positions, view)
        first = sum(end - start for text, start, end in spans if text == 0)
        logits.append(model.logits(hidden)[:first])
    return torch.cat(logits)


def decode(first: int, texts: int, rows: int) -> list[Spans]:
    """Decode from position `first` on, `rows` rows of each text per forward."""
    starts = range(first, LENGTH, rows)
    return [[(t, start, min(start + rows, LENGTH)) for t in range(texts)] for start in starts]


@pytest.mark.parametrize(("wanted", "page_size"), [("torch", 16), ("auto", 1)])
def test_logits_are_the_same_bits(
    model: Llama, texts: Any, page_size: int, wanted: Literal["torch", "auto"]
) -> None:
    ops = choose_backend(wanted, CPU, torch.float32, 16).backend
    ids = torch.randint(0, 300, (9, LENGTH), generator=torch.Generator().manual_seed(5))
    one_by_one = decode(0, 1, 1)
    expected = compute(model, texts.make(model.config, 1, LENGTH, 4, ops=ops), ids, one_by_one)
    cuts: dict[str, list[Spans]] = {
        "prefill": [[(0, 0, LENGTH)]],
        "chunks": [[(0, 0, 33)], [(0, 33, 34)], [(0, 34, LENGTH)]],
        "verify": [[(0, 0, 20)], *decode(20, 1, 4)],
        "batch": [[(text, 0, 10) for text in range(9)], *decode(10, 9, 1)],
        "batched verify": [[(text, 0, 11) for text in range(5)], *decode(11, 5, 3)],
        "mixed": [[(0, 0, 7), (1, 0, 50)], [(0, 7, 40), (2, 0, 3), (3, 0, 3)], [(0, 40, LENGTH)]],
    }
    for name, rounds in cuts.items():
        cached = texts.make(model.config, 9, LENGTH, page_size, ops=ops)
        logits = compute(model, cached, ids, rounds)
        assert torch.equal(logits, expected), f"{name}: {(logits - expected).abs().max():.1e}"


def test_keys_and_values_alone_are_the_bits_of_a_forward(model: Llama, texts: Any) -> None:
    ids = torch.randint(0, 300, (2 * LENGTH,), generator=torch.Generator().manual_seed(6))
    ops = choose_backend("auto", CPU, torch.float32, 16).backend
    cached = texts.make(model.config, 2, LENGTH, 4, ops=ops)
    positions, view = cached.view((0, 0, LENGTH), (1, 0, LENGTH))
    parts = [part for group in cached.pool.groups for part in (group.k, group.v)]
    model.forward(ids, positions, view)
    written = [part.nan_to_num(-1.0) for part in parts]
    poison(cached.pool)
    model.store_kv(ids, positions, view)
    for part, expected in zip(parts, written, strict=True):
        assert torch.equal(part.nan_to_num(-1.0), expected)
