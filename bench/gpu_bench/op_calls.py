"""One call of every op beside attention, on small random tensors; each call answers tensors."""

from collections.abc import Callable

import torch
from torch import Tensor

import specdecode_kernels as ops
from specdecode_kernels import DraftedNodes, PenaltyRows, SamplingRows
from specdecode_kernels.testing import backend_for

BATCH, NODES, VOCAB, HIDDEN = 3, 7, 1000, 128
PARENTS = (0, 0, 0, 1, 1, 2, 3)

Calls = dict[str, Callable[[], object]]


def op_calls(device: torch.device) -> Calls:
    """Every op by name; the tensors are the same each time this is asked."""
    draw = _Draw(torch.Generator().manual_seed(0), device)
    return {**_elementwise(draw), **_trees(draw), **_paths(draw), **_sampling(draw)}


class _Draw:
    def __init__(self, generator: torch.Generator, device: torch.device) -> None:
        self._generator = generator
        self.device = device

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=self._generator).to(self.device, dtype)

    def below(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self._generator).to(self.device)

    def numbers(self, *values: float, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)


def _elementwise(draw: _Draw) -> Calls:
    half = torch.bfloat16
    x, update = draw.normal(5, HIDDEN, dtype=half), draw.normal(5, HIDDEN, dtype=half)
    weight, qkv = draw.normal(HIDDEN, dtype=half), draw.normal(5, 8, 16, dtype=half)
    cos, sin = draw.normal(5, 8, dtype=half), draw.normal(5, 8, dtype=half)
    k_pool, v_pool = (draw.normal(32, 2, 16, dtype=half) for _ in range(2))
    rows = draw.numbers(3, 9, 4, 30, 1, dtype=torch.int64)

    def store() -> object:
        new = qkv[:, :2], qkv[:, 2:4]
        ops.store_kv(k_pool, v_pool, rows, *new, backend=backend_for(qkv))
        return k_pool, v_pool

    return {
        "rms_norm": lambda: ops.rms_norm(x, weight, 1e-5),
        "add_rms_norm": lambda: ops.add_rms_norm(x, update, weight, 1e-5),
        "apply_rope": lambda: ops.apply_rope(qkv[:, :4], qkv[:, 4:6], cos, sin),
        "silu_and_mul": lambda: ops.silu_and_mul(x[:, :64], x[:, 64:]),
        "store_kv": store,
    }


def _trees(draw: _Draw) -> Calls:
    candidates = draw.numbers(-1, -1, 0, 0, 1, 1, dtype=torch.int64).expand(BATCH, 6).contiguous()
    first = -draw.normal(BATCH, 2).abs()
    scores = torch.cat([first, first[:, [0, 0, 1, 1]] - draw.normal(BATCH, 4).abs()], dim=1)
    parents = draw.numbers(*PARENTS, dtype=torch.int64).expand(BATCH, NODES).contiguous()
    drafted, tokens = draw.below(3, BATCH, NODES - 1), draw.below(3, BATCH, NODES)
    ids = draw.below(9, BATCH, 6)
    return {
        "select_nodes": lambda: ops.select_nodes(scores, ids, candidates, 4),
        "link_nodes": lambda: ops.link_nodes(parents, 3),
        "walk_chain": lambda: ops.walk_chain(tokens, drafted),
        "walk_tree": lambda: ops.walk_tree(tokens, drafted, parents, 4),
    }


def _paths(draw: _Draw) -> Calls:
    values, path = draw.normal(BATCH, NODES, 40), draw.below(NODES, BATCH, 4)
    k_pool, v_pool = (draw.normal(2, 64, 2, 8, dtype=torch.bfloat16) for _ in range(2))
    pages = torch.arange(16, device=draw.device).view(2, 8)
    slots, lengths = (draw.numbers(*of, dtype=torch.int64) for of in ((1, 0), (5, 9)))
    kept = torch.tensor([[0, 2, 5, 5], [0, 1, 3, 6]], device=draw.device)

    def move() -> object:
        ops.move_kv(k_pool, v_pool, pages, slots, lengths, kept, 4)
        return k_pool, v_pool

    return {"take_path": lambda: ops.take_path(values, path), "move_kv": move}


def _sampling(draw: _Draw) -> Calls:
    logits, positions = draw.normal(BATCH, NODES, VOCAB), draw.below(50, BATCH, NODES)
    parents = draw.numbers(*PARENTS, dtype=torch.int64).expand(BATCH, NODES).contiguous()
    penalties = PenaltyRows(
        counts=draw.below(2, 1, VOCAB).float(),
        in_prompt=draw.below(2, 1, VOCAB).bool(),
        bias=draw.normal(1, VOCAB),
        states=draw.numbers(0, -1, -1, dtype=torch.int64),
        numbers=torch.tensor([[1.3, 0.2, 0.1]] + [[1.0, 0, 0]] * 2).to(draw.device, torch.float64),
    )
    rows = SamplingRows(
        temperature=draw.numbers(0.7, 0.0, 1.2),
        top_k=draw.numbers(40, 0, 0).long(),
        top_p=draw.numbers(0.9, 1.0, 1.0),
        min_p=draw.numbers(0.01, 0.0, 0.0),
        seeds=draw.numbers(3, 4, 5).long(),
        is_filtered=True,
    )
    drafted = DraftedNodes(draw.below(VOCAB, BATCH, NODES - 1), parents, 3)
    return {
        "penalise": lambda: ops.penalise(logits, penalties, drafted),
        "choose": lambda: ops.choose(logits, rows, positions),
    }
