"""The experts op's benchmark computes both sides on the same experts and reports them."""

import json
from pathlib import Path

import pytest
import torch

from bench.cpu.experts_bench.__main__ import MixtureLayer, MixtureSizes, main
from bench.cpu.peers.floors import Floors
from specdecode_kernels.testing import LaunchCounter, backend_of

SMALL = MixtureSizes(experts=4, top_k=2, hidden=32, inner=16)


def test_every_figure_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    assert main(["--repeats", "1", "--result", str(file)], SMALL) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert json.loads(file.read_text()) == report
    wanted = {
        f"{dtype}, {rows} rows" for dtype in ("float32", "bfloat16") for rows in (1, 8, 64, 512)
    }
    assert report["figures"].keys() == wanted
    for figures in report["figures"].values():
        assert figures.keys() == {"op_ms", "of_limit", "of_maps", "router_share"}
        assert min(figures.values()) > 0


def test_the_limit_is_what_takes_longer_of_every_product() -> None:
    layer = MixtureLayer(backend_of("cpu", torch.device("cpu")), SMALL, torch.float32)
    rates = Floors(read_gb_s=4e-6, copy_gb_s=1.0, product_gflop_s=2e-6)  # per ms
    weights = 3 * SMALL.inner * SMALL.hidden
    assert layer.limit_ms([1], rates) == pytest.approx(weights)  # reads 4 bytes, multiplies once
    assert layer.limit_ms([1, 5], rates) == pytest.approx((1 + 5) * weights)
    slow = Floors(read_gb_s=1e-6, copy_gb_s=1.0, product_gflop_s=2e-6)
    assert layer.limit_ms([1, 5], slow) == pytest.approx((4 + 5) * weights)


def test_the_maps_are_those_of_the_experts_that_have_rows() -> None:
    counter = LaunchCounter()
    ops = counter.wrap(backend_of("cpu", torch.device("cpu")))
    calls = MixtureLayer(ops, SMALL, torch.float32).calls(1)
    counter.counts.clear()
    calls.op()
    calls.maps()
    assert counter.counts == {("experts", "cpu"): 1, ("linear", "cpu"): 2 * SMALL.top_k}
