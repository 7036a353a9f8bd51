"""Rows of the torch references keep their bits on a CPU under a BLAS that varies with the batch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specdecode_kernels import (
    TORCH,
    AttentionMetadata,
    ExpertRouting,
    ExpertWeights,
    GatedActivation,
    LayerKV,
    TreeKV,
)
from specdecode_kernels.torch import by_row, elementwise, experts, sampling
from specdecode_kernels.torch import linear as linear_module
from tests.unsteady_blas import UnsteadyBlas, under_unsteady_blas

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ROWS = 13
Op = Callable[[Tensor], Tensor]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def linear_of(dtype: torch.dtype) -> Op:
    weight, bias = normal(70, 50, seed=1, dtype=dtype), normal(70, seed=2, dtype=dtype)
    return lambda x: linear_module.linear(x, weight, bias)


def norm_of(dtype: torch.dtype) -> Op:
    weight = normal(50, seed=3, dtype=dtype)
    return lambda x: elementwise.rms_norm(x, weight, 1e-5)


def map_heads_of(dtype: torch.dtype) -> Op:
    weight = normal(2, 40, 25, seed=6, dtype=dtype)
    return lambda x: linear_module.map_heads(x.view(len(x), 2, 25), weight).flatten(1)


def gate_of(_: torch.dtype) -> Op:
    return lambda x: elementwise.silu_and_mul(x, x)


def gelu_gate_of(_: torch.dtype) -> Op:
    return lambda x: elementwise.gelu_tanh_and_mul(x, x)


def softcap_of(_: torch.dtype) -> Op:
    return lambda x: elementwise.softcap(x, 0.5)


def experts_of(dtype: torch.dtype) -> Op:
    weights = ExpertWeights(
        normal(3, 40, 50, seed=4, dtype=dtype), normal(3, 50, 20, seed=5, dtype=dtype)
    )

    def compute(x: Tensor) -> Tensor:
        ids = torch.tensor([[2, 0]], dtype=torch.int32).expand(len(x), -1)
        routing = ExpertRouting(ids, torch.tensor([[0.3, 0.7]]).expand(len(x), -1))
        return experts.experts(x, routing, weights, GatedActivation("gelu_tanh"))

    return compute


def filter_of(_: torch.dtype) -> Op:
    def compute(x: Tensor) -> Tensor:
        count = len(x)
        return sampling.filter_logits(
            x.float(), torch.full((count,), 30), torch.full((count,), 0.7), torch.zeros(count)
        )

    return compute


def noise_of(_: torch.dtype) -> Op:
    return lambda x: sampling.gumbel_noise(
        x[:, 0].double().view(torch.int64), torch.full((len(x),), 7), torch.arange(33)
    )


def logprobs_of(_: torch.dtype) -> Op:
    return by_row.log_softmax


OPS = {
    "linear": linear_of,
    "map_heads": map_heads_of,
    "rms_norm": norm_of,
    "silu_and_mul": gate_of,
    "gelu_tanh_and_mul": gelu_gate_of,
    "softcap": softcap_of,
    "experts": experts_of,
    "filter_logits": filter_of,
    "gumbel_noise": noise_of,
    "log_softmax": logprobs_of,
}


def differs(op: Op, x: Tensor) -> bool:
    """Whether some row of x comes out differently among others, elsewhere, or out of alignment."""
    alone = torch.cat([op(x[place : place + 1].clone()) for place in range(len(x))])
    misaligned = torch.empty(len(x), x.shape[1] + 3, dtype=x.dtype)[:, 1:-2].copy_(x)
    batches = [op(x), op(x[5:]), op(x[2:9]), op(misaligned), op(x.flip(0)).flip(0)]
    wanted = [alone, alone[5:], alone[2:9], alone, alone]
    return not all(torch.equal(a, b) for a, b in zip(batches, wanted, strict=True))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_a_row_does_not_depend_on_the_batch(name: str, dtype: torch.dtype) -> None:
    op, x = OPS[name](dtype), normal(ROWS, 50, dtype=dtype)
    assert not differs(op, x)
    assert not under_unsteady_blas(lambda: differs(op, x))


@pytest.mark.parametrize("name", sorted(set(OPS) - {"filter_logits"}))  # borders rarely move
def test_one_call_for_all_rows_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in itself: batched computation, as on other devices, does not survive it."""
    monkeypatch.setattr(by_row, "computes_by_row", lambda _: False)
    monkeypatch.setattr(linear_module, "computes_by_row", lambda _: False)
    op, x = OPS[name](torch.float32), normal(ROWS, 50)
    with UnsteadyBlas():
        assert differs(op, x)


@pytest.mark.parametrize(("outputs", "inputs"), [(64, 48), (333, 1000), (2000, 512)])
def test_a_weight_that_is_cut_keeps_rows_independent(outputs: int, inputs: int) -> None:
    x, weight, bias = normal(40, inputs), normal(outputs, inputs, seed=1), normal(outputs, seed=2)

    def check() -> None:
        wanted = linear_module.linear(x, weight, bias)
        for rows in (*range(1, 9), 17, 33):
            assert torch.equal(linear_module.linear(x[:rows], weight, bias), wanted[:rows])

    check()
    under_unsteady_blas(check)


def attend(
    q: Tensor,
    pool: Tensor,
    visible: list[int],
    lens: tuple[int, ...],
    tree_kv: TreeKV | None = None,
) -> Tensor:
    table = torch.arange(len(pool)).view(1, -1).expand(len(lens), -1).contiguous()
    metadata = AttentionMetadata(table, 1, lens, torch.tensor(visible), max(visible))
    return TORCH.attend(q, LayerKV(pool, pool * 2), metadata, tree_kv)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_attention_of_a_row_depends_on_its_keys_alone(dtype: torch.dtype) -> None:
    """Alone, in a prompt, in a batch, and with its last keys in a tree or under a tree's mask."""
    pool, q = normal(40, 2, 12, dtype=dtype), normal(6, 4, 12, seed=1, dtype=dtype)
    visible = [20 + place for place in range(6)]

    def check() -> None:
        alone = torch.cat([attend(q[i : i + 1], pool, [visible[i]], (1,)) for i in range(6)])
        assert torch.equal(attend(q, pool, visible, (6,)), alone)
        assert torch.equal(attend(q, pool, visible, (2, 2, 2)), alone)
        assert torch.equal(attend(q, pool, visible, (1, 1, 1, 1, 1, 1)), alone)
        chain = torch.ones(1, 6, 6, dtype=torch.bool).tril()
        tail = TreeKV(pool[None, 19:25], pool[None, 19:25] * 2, chain)
        assert torch.equal(attend(q, pool, [19] * 6, (6,), tail), alone)
        tails = TreeKV(*(part.expand(3, -1, -1, *part.shape[3:]) for part in tail))
        some = torch.cat((q[:2], q[:3], q[:1]))
        wanted = torch.cat((alone[:2], alone[:3], alone[:1]))
        assert torch.equal(attend(some, pool, [19] * 6, (2, 3, 1), tails), wanted)
        gaps = torch.zeros(1, 6, 12, dtype=torch.bool)  # every other row belongs to other nodes
        gaps[:, :, ::2] = chain
        spread = pool[None, 19:25].repeat_interleave(2, dim=1)
        spread[:, 1::2] = torch.nan
        tree = TreeKV(spread, spread * 2, gaps)
        assert torch.equal(attend(q, pool, [19] * 6, (6,), tree), alone)

    check()
    under_unsteady_blas(check)
