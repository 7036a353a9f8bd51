"""An engine whose weights were never stored: made in memory, by what `build_core` is given."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.checkpoint.checkpoint import Checkpoint, Part, Shape, StoredTensor
from specdecode_engine.startup.build import build_core


class Kept:
    """Tensors that were read before."""

    def __init__(self, folder: Path) -> None:
        self._stored = Checkpoint.open(folder)
        self._tensors = {n: torch.empty(t.shape) for n, t in self._stored.tensors.items()}
        for name, tensor in self._tensors.items():
            self._stored.read(name, tensor)

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return self._stored.tensors

    def check(self, expected: Mapping[str, Shape], optional: Mapping[str, Shape]) -> None:
        shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}
        every = {**expected, **optional}
        assert shapes == {name: every[name] for name in shapes}

    def read(self, name: str, into: Tensor, part: Part = ()) -> None:
        into.copy_(self._tensors[name][part])

    def get(self, name: str) -> Tensor:
        return self._tensors[name]


def boot(target: Path, draft: Path | None, **model: str) -> EngineBoot:
    speculation = {"algorithm": "STANDALONE", "draft_path": str(draft), "num_steps": 3}
    return EngineBoot.model_validate(
        {
            "model": {"path": str(target), **model},
            "speculation": {"algorithm": "NONE"} if draft is None else speculation,
            "scheduling": {"max_running_requests": 1},
            "device": "cpu",
            "threads": 1,
        }
    )


def answer(core: EngineCore) -> list[int]:
    core.submit(Request("a", (5, 6, 7), SamplingParams(0, 20, 0.0, ignore_eos=True)))
    tokens: list[int] = []
    while core.has_work():
        for output in core.step():
            tokens += output.token_ids
    return tokens


def test_an_engine_from_memory_answers_as_the_one_from_the_folder(checkpoints, tmp_path) -> None:
    folders = {}
    for name in ("target", "draft"):
        stored = getattr(checkpoints, name)
        folders[tmp_path / name] = Kept(stored)
        (tmp_path / name).mkdir()
        shutil.copy(stored / "config.json", tmp_path / name)
    core = build_core(boot(*folders), open_store=folders.__getitem__)
    expected = answer(build_core(boot(checkpoints.target, checkpoints.draft)))
    assert answer(core) == expected
    assert core.counters.decode.accept_length > 1
