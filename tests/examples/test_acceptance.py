"""The recorded acceptance of the example pair is what slow drafting finds token by token."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu.peers.recording import read_recording

# Not followed by mypy, which does not check the training of the example models.
acceptance: Any = import_module("recipe.acceptance")
answers: Any = import_module("recipe.answers")
documents: Any = import_module("recipe.documents")
eagle3: Any = import_module("recipe.eagle3")
measure: Any = import_module("measure")
target: Any = import_module("recipe.target")
vocabulary: Any = import_module("recipe.vocabulary")

MODELS = Path(__file__).resolve().parents[2] / "examples" / "models"
COMPARED = 20


@pytest.fixture(scope="module")
def model() -> Any:
    return target.load(MODELS / "target")


@pytest.mark.parametrize("kind", acceptance.KINDS)
def test_the_recording_is_what_slow_drafting_accepts(model: Any, kind: str) -> None:
    tokenizer = vocabulary.load(MODELS / "target")
    draft = measure.headed(eagle3.load(MODELS / "eagle3", model), model)
    opening, text = next(acceptance.held_out(kind))
    before = answers.opening(documents.Prompt("chat" if kind == "chat" else "text", kind, opening))
    first = len(tokenizer.encode(before).ids)
    ids = tokenizer.encode(before + text).ids[: first + COMPARED]
    with torch.inference_mode():
        found = [
            int(draft(ids[:at], 1) == measure.best(model, ids[:at])[-1:])
            for at in range(first, len(ids))
        ]
    assert found == [*read_recording().kinds[kind][: len(found)]]
    assert len(found) > COMPARED // 2


def test_every_kind_has_a_sixth_of_the_cycle() -> None:
    recording = read_recording()
    assert [*recording.kinds] == [*acceptance.KINDS]
    assert {len(bits) for bits in recording.kinds.values()} == {acceptance.TOKENS}
