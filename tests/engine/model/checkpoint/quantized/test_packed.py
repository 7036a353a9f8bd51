"""Packed integers of all widths, in both layouts of rows: what compressed-tensors decompresses.

`packed/write.py` ran with version 0.17 to write `packed/`, and runs here with the installed one.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdecode_engine.model.checkpoint.checkpoint import TensorError
from specdecode_engine.model.checkpoint.quantized.store import open_checkpoint
from tests.engine.model.checkpoint.quantized.packed.write import INPUTS, write

BEFORE_STREAMS = Path(__file__).parent / "packed"


@pytest.fixture(scope="module", params=["0.17", "installed"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "0.17":
        return BEFORE_STREAMS
    written = tmp_path_factory.mktemp("packed")
    write(written)
    return written


def test_weights_are_those_that_the_library_decompresses(folder: Path) -> None:
    store = open_checkpoint(folder)
    expected = load_file(folder / "decompressed.safetensors")
    assert len(expected) == 7 * 2 * len(INPUTS) == len(store.tensors)
    for name, weight in expected.items():
        read = torch.empty(store.tensors[name].shape)
        store.read(name, read)
        assert torch.equal(read, weight), name
        part = torch.empty(7, weight.shape[1] - 4)
        store.read(name, part, (slice(9, 16), slice(4, None)))
        assert torch.equal(part, weight[9:16, 4:]), name


def test_rows_that_fit_both_layouts_are_read_by_version(tmp_path: Path) -> None:
    for file in BEFORE_STREAMS.iterdir():
        if file.suffix in {".json", ".safetensors"}:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["version"] = "0.18.0"
    (tmp_path / "config.json").write_text(json.dumps(config))
    store = open_checkpoint(tmp_path)
    differs = set()
    for name, weight in load_file(tmp_path / "decompressed.safetensors").items():
        read = torch.empty(weight.shape)
        store.read(name, read)
        differs |= set() if torch.equal(read, weight) else {name}
    assert differs == {
        f"w{bits}-{kind}-20.weight" for bits in (3, 5, 6, 7) for kind in ("symmetric", "asymmetric")
    }


@pytest.mark.parametrize(
    ("sizes", "fault"),
    [
        ([20, 97], r"weight_packed is \[20, 15\] instead of \[20, 16\] or \[20, 17\]"),
        ([21, 96], r"weight_packed is \[20, 15\] instead of \[21, 15\] or \[21, 16\]"),
        ([20, 96, 1], r"weight_shape is \[3\] instead of \[2\]"),
    ],
)
def test_a_shape_that_no_layout_has_is_refused(
    sizes: list[int], fault: str, tmp_path: Path
) -> None:
    write(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["w5-symmetric-96.weight_shape"] = torch.tensor(sizes)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(TensorError, match=fault):
        open_checkpoint(tmp_path)
