"""P-EAGLE: an EAGLE-3 head of speculators, with rows of a mask after the last pair.

Source: vllm-project/speculators, `PEagleDraftModel`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from checks.drafts_zoo.files import read_tensors, write_checkpoint
from checks.drafts_zoo.fitting import fit
from checks.drafts_zoo.format import DraftFiles, DraftFormat
from checks.drafts_zoo.formats.eagle3 import (
    AUX_LAYERS,
    DRAFT_VOCAB,
    LAYOUTS,
    SPECULATORS,
    TARGET_HIDDEN,
    Eagle3Reference,
)
from checks.drafts_zoo.slow_layers import Tensors, linear
from checks.drafts_zoo.targets import VOCAB, SlowTarget, answer_tokens, write_target
from specdecode_api.speculation import Algorithm

TOKENS = 10  # that the head drafts at once
ANCHOR_STEP = 4
MASK_ID = VOCAB - 1
KEYS = {
    **SPECULATORS,
    "architectures": ["PEagleSpeculator"],
    "speculators_model_type": "peagle",
    "mask_token_id": MASK_ID,
    "speculators_config": {
        "algorithm": "peagle",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": TOKENS}],
    },
}
LAYOUT = replace(LAYOUTS["eagle3-speculators"], keys=KEYS, layers=2)


class PEagleReference(Eagle3Reference):
    """Rows of masks continue the rows of pairs; row i predicts token i + 2."""

    @classmethod
    def open_files(cls, files: DraftFiles) -> "PEagleReference":
        assert files.draft is not None
        return cls(LAYOUT, SlowTarget(files.target), read_tensors(files.draft))

    def next_logits(self, committed: Sequence[int], drafted: Sequence[int]) -> Tensor:
        aux = self.target.states(tuple(committed[:-1])).side_by_side(AUX_LAYERS)
        logits = self._drafts(self._tensors, torch.tensor(committed), aux, 1 + len(drafted))
        scores = torch.full((VOCAB,), -torch.inf, dtype=torch.float64)
        return scores.index_copy(0, self._ids, logits[-1])

    def loss(self, w: Tensors, texts: Sequence[tuple[int, ...]]) -> Tensor:
        """Cross entropy of the tokens after bonus tokens all over the texts."""
        draft_ids = torch.full((VOCAB,), -100).index_copy(0, self._ids, torch.arange(DRAFT_VOCAB))
        total = torch.zeros((), dtype=torch.float64)
        for text in texts:
            ids, aux = torch.tensor(text), self.target.states(text).side_by_side(AUX_LAYERS)
            for known in range(2, len(text) - TOKENS, ANCHOR_STEP):
                logits = self._drafts(w, ids[:known], aux[: known - 1], TOKENS)
                wanted = draft_ids[ids[known : known + TOKENS]]
                total = total + cross_entropy(logits, wanted)
        return total

    def _drafts(self, w: Tensors, committed: Tensor, aux: Tensor, count: int) -> Tensor:
        """Score the `count` tokens after the bonus token, which is the last of `committed`."""
        masks = w["mask_hidden"].reshape(1, -1).expand(count - 1, -1)
        ids = torch.cat((committed[1:], torch.full((count - 1,), MASK_ID)))
        rows = self._rows(w, ids, linear(w, "fc", torch.cat((aux, masks))))
        return self._logits(w, rows[-count:])


def _write(folder: Path, seed: int) -> DraftFiles:
    files = DraftFiles(folder / "target", folder / "draft")
    write_target(files.target)
    target = SlowTarget(files.target)
    texts = target.answered_prompts()
    known = answer_tokens(texts)
    generator = torch.Generator().manual_seed(seed)
    width = len(AUX_LAYERS) * TARGET_HIDDEN
    tensors = LAYOUT.draw(seed, known)
    tensors["mask_hidden"] = torch.randn(1, 1, width, generator=generator)
    head = PEagleReference(LAYOUT, target, tensors)
    fitted = fit(tensors, lambda w: head.loss(w, texts))
    write_checkpoint(folder / "draft", LAYOUT.config(), fitted)
    return files


FORMATS = (
    DraftFormat(
        name="peagle",
        algorithm=Algorithm.PEAGLE,
        write=_write,
        reference=PEagleReference.open_files,
        num_steps=5,
        optional=LAYOUT.optional,
    ),
)
