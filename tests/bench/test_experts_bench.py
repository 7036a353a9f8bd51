"""The experts op's benchmark computes both sides on the same experts and reports them."""

import json
from pathlib import Path

import pytest
import torch

from experts_bench.__main__ import MixtureLayer, MixtureSizes, main
from specdecode_kernels.testing import LaunchCounter, backend_of

SMALL = MixtureSizes(experts=4, top_k=2, hidden=32, inner=16)


def test_every_figure_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    assert main(["--blocks", "1", "--calls", "1", "--result", str(file)], SMALL) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert json.loads(file.read_text()) == report
    wanted = {f"{dtype}, {rows} rows" for dtype in ("float32", "bfloat16") for rows in (1, 8, 64)}
    assert report["figures"].keys() == wanted
    assert all(figures["of_limit"] > 0 for figures in report["figures"].values())


def test_the_maps_are_those_of_the_experts_that_have_rows() -> None:
    counter = LaunchCounter()
    ops = counter.wrap(backend_of("cpu", torch.device("cpu")))
    op, maps = MixtureLayer(ops, SMALL, torch.float32).calls(1)
    op()
    maps()
    assert counter.counts == {("experts", "cpu"): 1, ("linear", "cpu"): 2 * SMALL.top_k}
