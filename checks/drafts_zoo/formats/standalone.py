"""A language model as the draft: the target with noise in its weights."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from checks.drafts_zoo.format import DraftFiles, DraftFormat
from checks.drafts_zoo.targets import SlowTarget, write_target
from checks.zoo.models import read_models
from specdecode_api.speculation import Algorithm

NOISE = 0.02


def _write(folder: Path, seed: int) -> DraftFiles:
    files = DraftFiles(folder / "target", folder / "draft")
    write_target(files.target)
    read_models()["llama"].make(folder / "draft", change=NOISE)
    return files


class _SlowModel:
    """Continues the text as the draft would."""

    def __init__(self, files: DraftFiles) -> None:
        assert files.draft is not None
        self._model = SlowTarget(files.draft)

    def next_logits(self, committed: Sequence[int], drafted: Sequence[int]) -> Tensor:
        return self._model.states((*committed, *drafted)).logits[-1]


FORMATS = (
    DraftFormat(
        name="standalone", algorithm=Algorithm.STANDALONE, write=_write, reference=_SlowModel
    ),
)
