"""Shares of the machine's limits: what they are shares of, real engines, and an idle machine."""

import os
from dataclasses import replace

import pytest
import torch

from bench.cpu.engine.limits import (
    LimitsExtent,
    extent,
    linear_limit_s,
    measure_limits,
    prefill_operations,
    size_beyond,
)
from bench.cpu.peers.epsilon_pair import Size
from bench.cpu.peers.floors import Floors, l3_bytes
from bench.cpu.peers.idle import MAX_LOAD_VARIABLE, MachineBusy, wait_until_idle
from bench.cpu.peers.targets import TARGETS
from specdecode_kernels.testing import backend_of

TINY = Size(2, 64, vocab=300, heads=4, context=64, kv_heads=2, inner=96)
DTYPES = {"float32", "bfloat16"}
QUANTIZED = {"int8_vs_bf16", "int4_vs_bf16"}
QUANTIZED |= {"float8-128_vs_w8a16", "mxfp4_vs_w4a16", "nvfp4_vs_w4a16"}


def test_every_figure_is_measured_on_real_kernels_and_engines() -> None:
    figures = measure_limits(LimitsExtent(TINY, repeats=1, steps=2, prompts=(20,)))
    for name in ("linear1", "linear8", "linear64"):
        shares = figures[f"{name}_of_limit"]
        assert isinstance(shares, dict)
        assert shares.keys() == DTYPES
        assert min(shares.values()) > 0
    for name in ("step_b1_of_read", "step_b8_of_read"):
        shares = figures[name]
        assert isinstance(shares, dict)
        assert shares.keys() == DTYPES
    for name in ("prefill_of_flops", "prefill_of_flops_bfloat16"):
        shares = figures[name]
        assert isinstance(shares, dict)
        assert shares.keys() == {"20"}
    spread = figures["spread"]
    assert isinstance(spread, dict)
    for name in QUANTIZED:
        assert isinstance(figures[name], float)
        assert spread[name] == (figures[name], figures[name])
    for name in ("calls_per_step", "read_limit_gb_s", "product_limit_gflop_s"):
        assert isinstance(figures[name], int | float)
        assert figures[name]


def test_the_model_is_larger_than_the_caches_in_every_type() -> None:
    whole = extent(is_quick=False)
    assert whole.size.streamed * 9 // 16 > 2 * l3_bytes()
    assert whole.size.layers == 12
    assert whole.size.heads % whole.size.key_heads == 0
    smaller = size_beyond(whole.size.streamed // 4)
    assert smaller.streamed < whole.size.streamed


def test_the_limit_of_a_linear_layer_is_what_takes_longer() -> None:
    pack_weight = backend_of("cpu", torch.device("cpu")).pack_weight
    assert pack_weight is not None
    weight = pack_weight(torch.zeros(64, 32))  # 8,192 bytes
    floors = Floors(read_gb_s=8.192e-6, copy_gb_s=1.0, product_gflop_s=4.096e-6)
    assert linear_limit_s(weight, 1, floors) == pytest.approx(1.0)  # reading; products take 1 s
    assert linear_limit_s(weight, 8, floors) == pytest.approx(8.0)
    by_pairs = replace(floors, pair_gflop_s=2 * floors.product_gflop_s)
    assert linear_limit_s(weight, 8, by_pairs) == pytest.approx(8.0)
    assert by_pairs.products_of(torch.bfloat16) == 2 * floors.product_gflop_s
    assert floors.products_of(torch.bfloat16) == floors.product_gflop_s


def test_operations_of_a_prefill_have_those_of_attention_and_of_one_row_of_the_head() -> None:
    size = Size(3, 8, vocab=10, heads=2, kv_heads=1, inner=4)
    layer = 8 * (8 + 4 + 4) + 8 * 8 + 3 * 8 * 4
    attention = 3 * 2 * 4 * 4 * (1 + 2)
    assert prefill_operations(size, 2) == 2 * (2 * 3 * layer + 10 * 8) + attention


def test_figures_that_have_a_target_exist() -> None:
    named = {target.figure for target in TARGETS}
    wanted = {f"linear{rows}_of_limit {dtype}" for rows in (1, 8, 64) for dtype in DTYPES}
    wanted |= {f"step_b{batch}_of_read {dtype}" for batch in (1, 8) for dtype in DTYPES}
    wanted |= {"prefill_of_flops 512", "prefill_of_flops 2048", "calls_per_step"}
    wanted |= QUANTIZED
    assert wanted <= named


def test_a_busy_machine_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MAX_LOAD_VARIABLE, raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.75, 0.2, 0.1))
    with pytest.raises(MachineBusy, match=r"0\.75, more than 0\.5.*set BENCH_MAX_LOAD"):
        wait_until_idle(patience_s=0)
    monkeypatch.setenv(MAX_LOAD_VARIABLE, "1")
    assert wait_until_idle(patience_s=0) == 0.75
    monkeypatch.setenv(MAX_LOAD_VARIABLE, "none")
    with pytest.raises(ValueError, match="BENCH_MAX_LOAD='none' is not a number"):
        wait_until_idle(patience_s=0)
