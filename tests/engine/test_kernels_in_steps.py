"""A whole engine on kernels, Triton's interpreted and those in C, writes what references write."""

from dataclasses import dataclass

import pytest

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_kernels.choice import KERNELS_VARIABLE, Kernels
from specdecode_kernels.testing import (
    DEVICE,
    OPS,
    backend_of,
    implementation_of,
    mended_interpreter,
)
from tests.engine.backends import counted_launches
from tests.engine.whole_engine import boot_of

ALWAYS = {
    "linear",
    "rms_norm",
    "add_rms_norm",
    "apply_rope",
    "silu_and_mul",
    "sample",
    "apply_penalties",
    "rope_and_store_kv",
    "attend",
}
IN_C = {
    *("linear", "rms_norm", "add_rms_norm", "apply_rope", "silu_and_mul"),
    *("rope_and_store_kv", "attend", "append_tokens", "lay_out_rows"),
}
CHAIN = {"verify_chain"}
TREE = {"select_tree_nodes", "build_tree_mask", "verify_tree", "gather_accepted", "compact_kv"}
UNUSED = {
    # Our kernel attends to pages and tail in one softmax; merged is what FlashInfer answers,
    # which needs a GPU.
    "merge_states",
    "attend_with_lse",
    # Latents and modules of transformers store keys that are turned already.
    "store_kv",
    # Those of Gemma, mixtures and recurrent layers, with which `test_families.py`,
    # `test_recurrent.py` and the shadow CUDA device run.
    "gelu_tanh_and_mul",
    "softcap",
    "route_experts",
    "experts",
    "gated_delta",
    "keep_drafted",
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


def generate(checkpoints, topk: int, way: Kernels) -> Ran:
    device = "cpu" if way == "cpu" else DEVICE.type
    backend = "auto" if way == "cpu" else way
    document = boot_of(
        checkpoints, "EAGLE3", topk, num_steps=2, attention_backend=backend, device=device
    )
    with counted_launches() as counter:
        core = build_poisoned(EngineBoot.model_validate(document))
    core.submit(Request("r", (5, 6, 7), PARAMS))
    tokens: list[int] = []
    while core.has_work():
        for output in core.step():
            tokens += output.token_ids
    return Ran(tokens, counter.called(way))


@pytest.fixture(scope="module")
def ran(checkpoints) -> dict[tuple[int, str], Ran]:
    """Chain and tree, on references and on both kinds of kernels."""
    found: dict[tuple[int, str], Ran] = {}
    ways: tuple[Kernels, ...] = ("torch", "triton", "cpu")
    with pytest.MonkeyPatch.context() as patch, mended_interpreter():
        for way in ways:
            patch.setenv(KERNELS_VARIABLE, way)
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
    assert plain.kernels >= ALWAYS | more
    assert fast.kernels == ALWAYS | more


@pytest.mark.parametrize(("topk", "more"), [(1, CHAIN), (2, set())], ids=["chain", "tree"])
def test_texts_are_equal_and_every_kernel_in_c_ran(
    topk: int, more: set[str], ran: dict[tuple[int, str], Ran]
) -> None:
    assert ran[topk, "cpu"].tokens == ran[topk, "torch"].tokens
    assert ran[topk, "cpu"].kernels == IN_C | more


def test_every_op_with_a_kernel_is_used_or_excused(ran: dict[tuple[int, str], Ran]) -> None:
    used = ran[1, "triton"].kernels | ran[2, "triton"].kernels
    triton = backend_of("triton", DEVICE)
    assert used == {op for op in OPS if implementation_of(op, triton) == "triton"} - UNUSED
