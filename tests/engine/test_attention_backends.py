"""Attention by choice: who is chosen and why, and whole engines on our kernels in the interpreter.

Texts are compared with plain decoding on the same backend. The kernels add up in another order for
other numbers of rows, so log-probabilities are only near; that no token flips is what is asserted.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.lossless.families import LATENT, make_family
from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.cli.flags import parse_flags
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.config import (
    CUDA,
    OFF,
    AttentionUnavailable,
    GraphsUnavailable,
    choose_graph_mode,
)
from specdecode_kernels import TORCH, Backend, GraphSupport
from specdecode_kernels.testing import DEVICE, mended_interpreter
from tests.engine.backends import counted_launches
from tests.engine.whole_engine import Answer, boot_of, requests_of, run, tokens_of
from tests.shadow_cuda.active import shadow_cuda

CPU, GPU = torch.device("cpu"), torch.device("cuda")
ATTENTION = {"rope_and_store_kv", "attend"}


def build(checkpoints, algorithm: str, topk: int = 1, **sections: Any) -> EngineCore:
    sections |= {"attention_backend": "triton", "device": DEVICE.type}
    document = boot_of(checkpoints, algorithm, topk, **sections)
    return build_poisoned(EngineBoot.model_validate(document))


def answers(
    core: EngineCore, vocab: int, preempted_at_step: int | None = None
) -> dict[str, Answer]:
    return run(core, requests_of(vocab, 2, 6), preempted_at_step)


def assert_near(left: dict[str, Answer], right: dict[str, Answer]) -> None:
    assert tokens_of(left) == tokens_of(right)
    for name, answer in left.items():
        for one, other in zip(answer.logprobs, right[name].logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-5)


@pytest.fixture(scope="module", autouse=True)
def _interpreter() -> Iterator[None]:
    with mended_interpreter():
        yield


@pytest.fixture(scope="module")
def plain(checkpoints) -> dict[str, Answer]:
    return answers(build(checkpoints, "NONE"), checkpoints.vocab)


@pytest.mark.parametrize(
    ("algorithm", "topk", "page_size"),
    [("STANDALONE", 1, 16), ("EAGLE3", 3, 1)],
)  # each value once; each op has every page size in tests/kernels
def test_texts_equal_plain_ones_and_kernels_attend(
    algorithm: str, topk: int, page_size: int, checkpoints, plain: dict[str, Answer]
) -> None:
    with counted_launches() as counter:
        core = build(checkpoints, algorithm, topk, memory={"page_size": page_size})
    assert_near(answers(core, checkpoints.vocab), plain)
    assert counter.called("triton") >= ATTENTION


def test_texts_over_latents_equal_plain_ones(checkpoints, tmp_path: Path) -> None:
    target, draft = (
        make_family(LATENT, llama, tmp_path / name)
        for name, llama in (("target", checkpoints.target), ("draft", checkpoints.draft))
    )
    latent = replace(checkpoints, target=target, draft=draft)
    alone = answers(build(latent, "NONE"), latent.vocab)
    with counted_launches() as counter:
        core = build(latent, "EAGLE3", 3)
    assert_near(answers(core, latent.vocab), alone)
    assert counter.called("triton") >= ATTENTION


def test_plain_texts_are_those_of_the_reference(checkpoints, plain: dict[str, Answer]) -> None:
    document = boot_of(checkpoints, "NONE", 1, attention_backend="torch", device=DEVICE.type)
    with counted_launches() as counter:
        core = build_poisoned(EngineBoot.model_validate(document))
    assert_near(answers(core, checkpoints.vocab), plain)
    assert counter.called("torch") >= ATTENTION
    assert not counter.called("triton") & ATTENTION


def test_a_prefix_that_was_found_and_a_retraction_change_nothing(
    checkpoints, plain: dict[str, Answer]
) -> None:
    core = build(checkpoints, "EAGLE3", 3, memory={"page_size": 4})
    assert_near(answers(core, checkpoints.vocab), plain)
    hits = core.scheduler.cache.hit_tokens
    assert_near(answers(core, checkpoints.vocab, preempted_at_step=4), plain)
    assert core.scheduler.cache.hit_tokens > hits
    assert core.scheduler.preempted_total == 1


def test_padded_passes_of_trees_change_nothing(checkpoints, plain: dict[str, Answer]) -> None:
    graphs = {"mode": "static", "batch_sizes": [2, 4]}
    core = build(checkpoints, "EAGLE3", 3, graphs=graphs)
    assert_near(answers(core, checkpoints.vocab), plain)
    assert core.context.graphs.report().graph_steps == core.counters.decode.steps > 0


def test_the_choice_and_its_reason_are_facts_and_in_the_log(
    checkpoints, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    facts = build(checkpoints, "EAGLE3").facts
    assert facts["target_attention"] == facts["draft_attention"] == "triton"
    assert facts["target_attention_reason"] == "triton was asked for"
    assert "attention of the draft: triton (triton was asked for)" in caplog.messages


def test_by_itself_a_cpu_takes_what_is_for_it_and_reports_why(checkpoints) -> None:
    document = boot_of(checkpoints, "STANDALONE", 1)
    facts = build_core(EngineBoot.model_validate(document)).facts
    assert facts["target_attention"] == facts["draft_attention"] == "cpu"
    assert str(facts["target_attention_reason"]).startswith("kernels in C for this processor, as ")
    assert facts["graphs_reason"] == "there are no CUDA graphs on cpu"


@pytest.mark.parametrize(
    ("backend", "dtype", "why"),
    [
        ("triton", "float64", "the kernels take float16, bfloat16 and float32, not torch.float64"),
        ("flashinfer", "float32", "flashinfer"),
    ],
)
def test_a_choice_that_cannot_run_is_an_error_at_start(
    backend: str, dtype: str, why: str, checkpoints
) -> None:
    document = boot_of(checkpoints, "NONE", 1, attention_backend=backend)
    document["model"] = {"path": str(checkpoints.target), "dtype": dtype}
    with pytest.raises(AttentionUnavailable) as caught:
        build_core(EngineBoot.model_validate(document))
    message = str(caught.value)
    assert message.startswith(f"attention_backend {backend} cannot serve the target")
    assert why in message
    assert message.endswith("or choose 'auto'")


def test_flags_reach_the_boot_file() -> None:
    flags = ["--attention-backend", "triton", "--kv-cache-dtype", "fp8_e4m3"]
    boot = parse_flags(["--model-path", "m", *flags])
    assert boot.attention_backend == "triton"
    assert boot.memory.kv_cache_dtype == "fp8_e4m3"


def backend(is_possible: bool, limitation: str | None = None) -> Backend:
    return replace(TORCH, graph_support=GraphSupport(is_possible, limitation))


def test_by_itself_a_gpu_captures_where_that_is_safe_and_pays() -> None:
    fast, slow = backend(True), backend(False, "it plans")
    assert choose_graph_mode("auto", GPU, [fast, fast]).name == CUDA
    assert choose_graph_mode("auto", GPU, [fast, slow]) == (OFF, "it plans")
    mode, reason = choose_graph_mode("auto", GPU, [TORCH])
    assert (mode, reason) == (OFF, TORCH.graph_support.limitation)
    assert choose_graph_mode("auto", CPU, [fast]).name == OFF
    mode, reason = choose_graph_mode("auto", GPU, [fast], 2)
    assert (mode, "NCCL" in reason) == (OFF, True)


def test_what_was_asked_for_is_done_unless_it_cannot() -> None:
    refused = "it plans; use auto or off, or attention_backend"
    with shadow_cuda():
        assert choose_graph_mode("cuda", GPU, [TORCH]).name == CUDA
        assert "although torch would gather" in choose_graph_mode("cuda", GPU, [TORCH]).reason
        with pytest.raises(GraphsUnavailable, match=refused):
            choose_graph_mode("cuda", GPU, [backend(True), backend(False, "it plans")])
    assert choose_graph_mode("off", GPU, [TORCH]) == (OFF, "was asked for")
