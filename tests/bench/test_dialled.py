"""Engines with dialled drafts accept what the dial allows, and keep the text."""

from pathlib import Path

import pytest
import torch

from bench.cpu.dialled.dial import MOST_STEPS, Dial
from bench.cpu.dialled.engines import answer
from bench.cpu.dialled.heads import write_heads
from bench.cpu.peers.epsilon_pair import STRONG, Size, write_pair
from specdecode_api.boot import EngineBoot
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.build import build_core

SIZE = Size(4, 64, vocab=512, heads=4)
PROMPTS = tuple((8 + number, *range(20, 36)) for number in range(3))
ANSWER = 25


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("dialled")
    torch.manual_seed(0)
    return {"NONE": write_pair(folder, SIZE, STRONG)[0], **write_heads(folder, SIZE)}


def build_static(folders: dict[str, Path], algorithm: str) -> EngineCore:
    draft = {} if algorithm == "NONE" else {"draft_path": str(folders[algorithm]), "num_steps": 5}
    document = {
        "model": {"path": str(folders["NONE"]), "dtype": "float32"},
        "speculation": {"algorithm": algorithm, **draft},
        "scheduling": {"max_running_requests": len(PROMPTS)},
        "device": "cpu",
    }
    return build_core(EngineBoot.model_validate(document))


@pytest.mark.parametrize("algorithm", ["EAGLE3", "DFLASH"])
def test_a_dialled_draft_has_its_acceptance_and_changes_no_text(
    folders: dict[str, Path], algorithm: str
) -> None:
    plain = answer(build_static(folders, "NONE"), PROMPTS, ANSWER)
    texts = torch.tensor([[*prompt, *one] for prompt, one in zip(PROMPTS, plain, strict=True)])
    core = build_static(folders, algorithm)
    accepted = 3
    acceptance = [1.0] * accepted + [0.0] * (MOST_STEPS - accepted)
    Dial(texts, len(PROMPTS[0]), acceptance, SIZE.vocab).install(core)
    assert answer(core, PROMPTS, ANSWER) == plain
    steps = core.counters.decode.request_steps
    assert steps == len(PROMPTS) * (ANSWER - 1) // (accepted + 1)
