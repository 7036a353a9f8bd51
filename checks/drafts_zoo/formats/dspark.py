"""DSpark: DFlash's block with a Markov head, from the first row of the block on.

Source: deepseek-ai/DeepSpec, `Qwen3DSparkModel` and `markov_head.py`.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from checks.drafts_zoo.files import read_tensors
from checks.drafts_zoo.format import DraftFiles, DraftFormat, block_drafter_state
from checks.drafts_zoo.formats.dflash import SIZES, DFlashReference, draw_backbone, write_fitted
from checks.drafts_zoo.slow_layers import Tensors, draw_map, linear
from checks.drafts_zoo.targets import VOCAB, SlowTarget, write_target
from specdecode_api.speculation import Algorithm

RANK = 8
HEAD, CONFIDENCE = "markov_head", "confidence_head.proj"
# inputs and outputs of the projection, in ranks; hidden states come on top of the inputs
PROJECTIONS = {"gated": ("gate_proj", 1, 1), "rnn": ("joint_proj", 2, 3)}


def _write(kind: str, folder: Path, seed: int) -> DraftFiles:
    files = DraftFiles(folder / "target", folder / "draft")
    write_target(files.target)
    generator = torch.Generator().manual_seed(seed)
    tensors = draw_backbone(generator) | _draw_heads(kind, generator)
    head = DSparkReference(kind, SlowTarget(files.target), tensors)
    keys = {
        "architectures": ["Qwen3DSparkModel"],
        "markov_rank": RANK,
        "markov_head_type": kind,
        "enable_confidence_head": True,
        "confidence_head_with_markov": kind != "vanilla",
    }
    write_fitted(folder / "draft", head, tensors, keys)
    return files


def _draw_heads(kind: str, generator: torch.Generator) -> Tensors:
    hidden = SIZES.hidden_size
    tensors = {
        f"{HEAD}.markov_w1.weight": draw_map((VOCAB, RANK), generator),
        f"{HEAD}.markov_w2.weight": draw_map((VOCAB, RANK), generator),
    }
    if kind in PROJECTIONS:
        name, inputs, outputs = PROJECTIONS[kind]
        shape = outputs * RANK, inputs * RANK + hidden
        tensors[f"{HEAD}.{name}.weight"] = draw_map(shape, generator)
        tensors[f"{HEAD}.{name}.bias"] = 0.1 * torch.randn(shape[0], generator=generator)
    width = hidden + (RANK if kind != "vanilla" else 0)
    tensors[f"{CONFIDENCE}.weight"] = draw_map((1, width), generator)
    tensors[f"{CONFIDENCE}.bias"] = torch.ones(1)
    return tensors


class DSparkReference(DFlashReference):
    """Row r of a block predicts the token r + 1 positions after the bonus token."""

    first_row = 0

    def __init__(self, kind: str, target: SlowTarget, tensors: Tensors) -> None:
        super().__init__(target, tensors, has_windows=False)
        self._kind = kind

    @classmethod
    def open_kind(cls, kind: str, files: DraftFiles) -> "DSparkReference":
        assert files.draft is not None
        return cls(kind, SlowTarget(files.target), read_tensors(files.draft))

    def log_survival(self, committed: Sequence[int], drafted: Sequence[int]) -> Tensor:
        """Return the log-probability [n] f64 that the chain `drafted` is accepted to each token."""
        before = torch.tensor([committed[-1], *drafted[:-1]])
        x = self._rows_after(committed)[0, : len(before)]
        if self._kind != "vanilla":
            x = torch.cat((x, self._tensors[f"{HEAD}.markov_w1.weight"][before]), dim=1)
        logits = linear(self._tensors, CONFIDENCE, x)[:, 0]
        return logits.sigmoid().log().cumsum(dim=0)

    def _logits(self, w: Tensors, rows: Tensor, before: Tensor) -> Tensor:
        states = torch.zeros(len(before), RANK, dtype=rows.dtype)
        biases = []
        for place in range(before.shape[1]):
            x, a = rows[:, place], w[f"{HEAD}.markov_w1.weight"][before[:, place]]
            if self._kind == "vanilla":
                read = a
            elif self._kind == "gated":
                read = a * linear(w, f"{HEAD}.gate_proj", torch.cat((x, a), 1)).sigmoid()
            else:
                joint = linear(w, f"{HEAD}.joint_proj", torch.cat((states, a, x), 1))
                gate, candidate, output = joint[:, :RANK], joint[:, RANK:-RANK], joint[:, -RANK:]
                kept = gate.sigmoid()
                states, read = kept * states + (1 - kept) * candidate.tanh(), output.tanh()
            biases.append(read @ w[f"{HEAD}.markov_w2.weight"].T)
        return super()._logits(w, rows, before) + torch.stack(biases, dim=1)


FORMATS = tuple(
    DraftFormat(
        name=f"dspark-{kind}",
        algorithm=Algorithm.DSPARK,
        write=partial(_write, kind),
        reference=partial(DSparkReference.open_kind, kind),
        state=block_drafter_state,
    )
    for kind in ("vanilla", "gated", "rnn")
)
