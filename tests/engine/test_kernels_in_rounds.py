"""A whole engine on the kernels, in the interpreter, writes what it writes on the references."""

import pytest

from specdecode_api.boot import EngineBoot
from specdecode_engine.build import build_core
from specdecode_engine.request import Request, SamplingParams
from specdecode_kernels import launches
from specdecode_kernels.implementation import VARIABLE

ALWAYS = {
    "rms_norm",
    "add_rms_norm",
    "apply_rope",
    "silu_and_mul",
    "choose",
    "penalise",
}
TREE = {"select_nodes", "link_nodes", "walk_tree", "take_path", "move_kv"}
PARAMS = SamplingParams(
    seed=5,
    max_tokens=7,
    temperature=0.8,
    top_k=12,
    repetition_penalty=1.2,
    frequency_penalty=0.3,
    ignore_eos=True,
)


def generate(checkpoints, topk: int) -> list[int]:
    document = {
        "model": {"path": str(checkpoints.target)},
        "speculation": {
            "algorithm": "EAGLE3",
            "draft_path": str(checkpoints.eagle3),
            "num_steps": 2,
            "topk": topk,
        },
        "device": "cpu",
    }
    core = build_core(EngineBoot.model_validate(document), poison=True)
    core.submit(Request("r", (5, 6, 7), PARAMS))
    tokens: list[int] = []
    while core.has_work():
        for output in core.step():
            tokens += output.token_ids
    return tokens


@pytest.mark.parametrize(("topk", "more"), [(1, {"walk_chain"}), (2, TREE)], ids=["chain", "tree"])
def test_texts_are_equal_and_every_kernel_ran(
    topk: int, more: set[str], checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "torch")
    launches.reset()
    plain = generate(checkpoints, topk)
    assert not launches.snapshot()
    monkeypatch.setenv(VARIABLE, "triton")
    assert generate(checkpoints, topk) == plain
    assert {op for op, _ in launches.snapshot()} >= ALWAYS | more
    assert len(plain) == PARAMS.max_tokens
