"""A whole engine on kernels, Triton's interpreted and those in C, writes what references write."""

from dataclasses import dataclass

import pytest

from specdecode_api.boot import EngineBoot
from specdecode_engine.build import build_core
from specdecode_engine.request import Request, SamplingParams
from specdecode_kernels import launches
from specdecode_kernels.implementation import VARIABLE
from specdecode_kernels.registry import OPS
from specdecode_kernels.testing import DEVICE, computed_loop_bounds
from tests.engine.whole_engine import boot_of

ALWAYS = {
    "rms_norm",
    "add_rms_norm",
    "apply_rope",
    "silu_and_mul",
    "choose",
    "penalise",
    "store_kv",
    "attend",
}
IN_C = {"linear", "rms_norm", "add_rms_norm", "apply_rope", "silu_and_mul", "store_kv", "attend"}
CHAIN = {"walk_chain"}
TREE = {"select_nodes", "link_nodes", "walk_tree", "take_path", "move_kv"}
UNUSED = {
    # Our kernel attends to pages and tail in one softmax; merged is what FlashInfer answers,
    # which needs a GPU.
    "merge_states",
}
PARAMS = SamplingParams(
    seed=5,
    max_tokens=7,
    temperature=0.8,
    top_k=12,
    repetition_penalty=1.2,
    frequency_penalty=0.3,
    ignore_eos=True,
)


@dataclass(frozen=True, slots=True)
class Ran:
    """What an engine wrote, and which kernels were launched for it."""

    tokens: list[int]
    kernels: set[str]


def generate(checkpoints, topk: int, way: str) -> Ran:
    device = "cpu" if way == "native" else DEVICE.type
    chosen = {"attention_backend": "auto" if way == "native" else way, "device": device}
    document = boot_of(checkpoints, "EAGLE3", topk, num_steps=2, **chosen)
    core = build_core(EngineBoot.model_validate(document), poison=True)
    core.submit(Request("r", (5, 6, 7), PARAMS))
    tokens: list[int] = []
    launches.reset()
    while core.has_work():
        for output in core.step():
            tokens += output.token_ids
    return Ran(tokens, {op for op, by in launches.snapshot() if by == way})


@pytest.fixture(scope="module")
def ran(checkpoints) -> dict[tuple[int, str], Ran]:
    """Chain and tree, on references and on both kinds of kernels."""
    found = {}
    with pytest.MonkeyPatch.context() as patch, computed_loop_bounds():
        for way in ("torch", "triton", "native"):
            patch.setenv(VARIABLE, way)
            for topk in (1, 2):
                found[topk, way] = generate(checkpoints, topk, way)
    return found


@pytest.mark.parametrize(("topk", "more"), [(1, CHAIN), (2, TREE)], ids=["chain", "tree"])
def test_texts_are_equal_and_every_kernel_ran(
    topk: int, more: set[str], ran: dict[tuple[int, str], Ran]
) -> None:
    plain, fast = ran[topk, "torch"], ran[topk, "triton"]
    assert len(plain.tokens) == PARAMS.max_tokens
    assert fast.tokens == plain.tokens
    assert plain.kernels == set()
    assert fast.kernels == ALWAYS | more


@pytest.mark.parametrize("topk", [1, 2], ids=["chain", "tree"])
def test_texts_are_equal_and_every_kernel_in_c_ran(
    topk: int, ran: dict[tuple[int, str], Ran]
) -> None:
    assert ran[topk, "native"].tokens == ran[topk, "torch"].tokens
    assert ran[topk, "native"].kernels == IN_C


def test_every_op_with_a_kernel_is_used_or_excused(ran: dict[tuple[int, str], Ran]) -> None:
    used = ran[1, "triton"].kernels | ran[2, "triton"].kernels
    assert used == {op.name for op in OPS} - UNUSED
