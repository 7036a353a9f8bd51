"""One call of every op in the registry, on small tensors: for what treats all of them at once.

Letters: B batch, N nodes, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from specdecode_kernels import ops, paths, sampling, trees
from specdecode_kernels.backends import TORCH, AttentionBackend
from specdecode_kernels.backends.cpu_backend import CpuBackend
from specdecode_kernels.implementation import implementation_for
from specdecode_kernels.sampling_rows import DraftedNodes, PenaltyRows, SamplingRows
from specdecode_kernels.testing.attention import Shape, draw_case

B, N, V = 2, 7, 300
PARENTS = [0, 0, 0, 1, 1, 2, 3]


def calls(device: torch.device) -> dict[str, Callable[[], object]]:
    """Every op by name, ready to be called; the variable of `implementation_for` says by what."""
    return _calls_on_rows(device) | _calls_on_pools(device)


def _calls_on_pools(device: torch.device) -> dict[str, Callable[[], object]]:
    # Ops that take the backend of whoever holds the pool.
    case = draw_case(Shape(dtype=torch.bfloat16), 0).to(device)
    q, rows = case.q, torch.tensor([1, 2], device=device)
    new = torch.zeros_like(case.k_pool[:2])
    lse = torch.zeros(q.shape[:2], device=device)
    return {
        "store_kv": lambda: ops.store_kv(
            case.k_pool, case.v_pool, rows, new, new, backend=backend_for(q)
        ),
        "attend": lambda: case.attend(backend_for(q)),
        "merge_states": lambda: ops.merge_states(q, lse, q, lse, backend=backend_for(q)),
    }


def backend_for(tensor: Tensor) -> AttentionBackend:
    """Build the backend of the implementation that treats `tensor`."""
    chosen = implementation_for(tensor)
    if chosen == "torch":
        return TORCH
    if chosen == "native":
        return CpuBackend()
    from specdecode_kernels.backends.triton_backend import TritonBackend

    return TritonBackend(tensor.device, workspace_bytes=1 << 20)


def _sampling_rows(device: torch.device) -> SamplingRows:
    def numbers(*values: float) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    return SamplingRows(
        temperature=numbers(0.7, 0.0),
        top_k=numbers(40, 0).long(),
        top_p=numbers(0.9, 1.0),
        min_p=numbers(0.01, 0.0),
        seeds=numbers(3, 4).long(),
        is_filtered=True,
    )


def _calls_on_rows(device: torch.device) -> dict[str, Callable[[], object]]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    def below(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator).to(device)

    half = torch.bfloat16
    x, weight = normal(3, 96, dtype=half), normal(96, dtype=half)
    qkv, angles = normal(3, 8, 16, dtype=half), normal(3, 8)
    candidates = torch.tensor([[-1, -1, 0, 0, 1, 1]] * B, device=device)
    scores = -normal(B, 2).abs()
    scores = torch.cat([scores, scores[:, [0, 0, 1, 1]] - normal(B, 4).abs()], dim=1)
    parents = torch.tensor([PARENTS] * B, device=device)
    pool = normal(2, 64, 2, 8, dtype=half)
    logits = normal(B, N, V)
    positions = below(50, B, N)
    penalties = PenaltyRows(
        counts=below(2, 1, V).float(),
        in_prompt=below(2, 1, V).bool(),
        bias=normal(1, V),
        states=torch.tensor([0, -1], device=device),
        numbers=torch.tensor([[1.3, 0.2, 0.1], [1, 0, 0]], dtype=torch.float64, device=device),
    )
    return {
        "rms_norm": lambda: ops.rms_norm(x, weight, 1e-5),
        "add_rms_norm": lambda: ops.add_rms_norm(x, x, weight, 1e-5),
        "apply_rope": lambda: ops.apply_rope(qkv[:, :4], qkv[:, 4:6], angles, angles),
        "silu_and_mul": lambda: ops.silu_and_mul(x[:, :48], x[:, 48:]),
        "select_nodes": lambda: trees.select_nodes(scores, below(9, B, 6), candidates, 4),
        "link_nodes": lambda: trees.link_nodes(parents, 3),
        "walk_chain": lambda: trees.walk_chain(below(2, B, N), below(2, B, N - 1)),
        "walk_tree": lambda: trees.walk_tree(below(9, B, N), below(9, B, N - 1), parents, 4),
        "take_path": lambda: paths.take_path(logits, below(N, B, 4)),
        "move_kv": lambda: paths.move_kv(
            pool,
            pool.clone(),
            torch.arange(16, device=device).view(2, 8),
            torch.tensor([1, 0], device=device),
            torch.tensor([5, 9], device=device),
            torch.tensor([[0, 2, 5, 5], [0, 1, 3, 6]], device=device),
            4,
        ),
        "penalise": lambda: sampling.penalise(
            logits, penalties, DraftedNodes(below(V, B, N - 1), parents, 3)
        ),
        "choose": lambda: sampling.choose(logits, _sampling_rows(device), positions, below(V, V)),
    }
