"""EAGLE and EAGLE-2: one linear map over token and hidden state, then decoder layers.

Source: Li et al., "EAGLE", 2024; tensors as in the authors' checkpoints.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from checks.drafts_zoo.files import read_tensors, write_checkpoint
from checks.drafts_zoo.fitting import fit
from checks.drafts_zoo.format import DraftFiles, DraftFormat
from checks.drafts_zoo.slow_layers import (
    LayerSizes,
    Tensors,
    decoder_layer,
    draw_layer,
    draw_map,
    linear,
)
from checks.drafts_zoo.targets import VOCAB, SlowTarget, write_target
from specdecode_api.speculation import Algorithm

SIZES = LayerSizes()
MAX_POSITIONS = 8  # the target's length counts, not the head's


def _write(folder: Path, seed: int) -> DraftFiles:
    files = DraftFiles(folder / "target", folder / "draft")
    write_target(files.target)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        "fc.weight": draw_map((64, 128), generator),
        "fc.bias": 0.1 * torch.randn(64, generator=generator),
        **draw_layer("layers.0", SIZES, generator, norms=("post_attention_layernorm",)),
    }
    head = EagleReference(SlowTarget(files.target), tensors)
    texts = head.target.answered_prompts()
    keys = {
        **asdict(SIZES),
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 1,
        "vocab_size": VOCAB,
        "max_position_embeddings": MAX_POSITIONS,
        "bias": True,
        "hidden_act": "silu",
    }
    write_checkpoint(folder / "draft", keys, fit(tensors, lambda w: head.loss(w, texts)))
    return files


class EagleReference:
    """Row i pairs the target's final hidden state at i with token i + 1."""

    def __init__(self, target: SlowTarget, tensors: Tensors) -> None:
        self.target = target
        self._tensors = {name: tensor.double() for name, tensor in tensors.items()}
        self._embedding: Tensor = target.model.get_input_embeddings().weight.detach()
        self._scores: Tensor = target.model.get_output_embeddings().weight.detach()

    @classmethod
    def open(cls, files: DraftFiles) -> "EagleReference":
        assert files.draft is not None
        return cls(SlowTarget(files.target), read_tensors(files.draft))

    def next_logits(self, committed: Sequence[int], drafted: Sequence[int]) -> Tensor:
        hidden = self.target.states(tuple(committed[:-1])).final
        known = len(committed)
        ids = torch.tensor([*committed, *drafted])
        for end in range(known, len(ids) + 1):
            output = self._rows(self._tensors, ids[1:end], hidden)
            hidden = torch.cat((hidden, output[-1:]))
        return output[-1] @ self._scores.T

    def _rows(self, w: Tensors, ids: Tensor, hidden: Tensor) -> Tensor:
        """What stands for the target's hidden state one position on, [rows, hidden]."""
        x = linear(w, "fc", torch.cat((self._embedding[ids], hidden), dim=-1))
        return decoder_layer(w, "layers.0", SIZES, x, read=x)

    def loss(self, w: Tensors, texts: Sequence[tuple[int, ...]]) -> Tensor:
        """Cross entropy of token i + 2 after row i."""
        total = torch.zeros((), dtype=torch.float64)
        for text in texts:
            ids = torch.tensor(text)
            hidden = self.target.states(text).final[: len(text) - 2]
            logits = self._rows(w, ids[1:-1], hidden) @ self._scores.T
            total = total + cross_entropy(logits, ids[2:])
        return total


FORMATS = (
    DraftFormat(
        name="eagle", algorithm=Algorithm.EAGLE, write=_write, reference=EagleReference.open
    ),
)
