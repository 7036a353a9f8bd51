"""Replaces what a drafter drafts by tokens of a dialled acceptance."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request_table import DecodeBatch
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.engine import EngineCore
from specdecode_engine.sampling.sampler import SamplingBatch
from specdecode_engine.speculate.drafter import Drafter

MOST_STEPS = 16


class Dial:
    """Texts that the target will answer with, and which drafted tokens agree with them.

    Whether a token agrees depends on the text, its place and how deep it is drafted, so that every
    drafter with the same draft steps has the same tokens accepted.

    Args:
        texts: [N, T], prompts and answers; prompts differ in their first token.
        prompt: tokens of a prompt.
        acceptance: probability that the token of each draft step agrees if those before it do.
    """

    def __init__(self, texts: Tensor, prompt: int, acceptance: Sequence[float], vocab: int) -> None:
        self._prompt, self._vocab = prompt, vocab
        self._texts = torch.nn.functional.pad(texts, (0, MOST_STEPS + 1))
        self._row_of = {int(text[0]): row for row, text in enumerate(texts)}
        generator = torch.Generator().manual_seed(0)
        drawn = torch.rand(*self._texts.shape, MOST_STEPS, generator=generator)
        self._agrees = drawn < torch.tensor([*acceptance])

    def install(self, core: EngineCore) -> None:
        """Let an engine draft with this acceptance from now on."""
        drafter, table = core.context.drafter, core.context.table
        assert drafter is not None
        draft = type(drafter).draft

        def dialled(batch: DecodeBatch, sampling: SamplingBatch, shape: DraftShape) -> Draft:
            made = draft(drafter, batch, sampling, shape)
            firsts = table.tokens_at(batch.req_indices, torch.zeros_like(batch.lengths))
            rows = torch.tensor([self._row_of[first] for first in firsts.tolist()])
            return replace(made, tokens=self._tokens(rows, batch.lengths, shape.num_steps))

        vars(drafter)["draft"] = dialled

    def _tokens(self, rows: Tensor, lengths: Tensor, steps: int) -> Tensor:
        """Return drafted tokens [B, steps] after the bonus tokens at `lengths`."""
        depths = torch.arange(steps)
        places = lengths[:, None] + 1 + depths
        own = self._texts[rows[:, None], places]
        agrees = self._agrees[rows[:, None], places, depths]
        return torch.where(agrees, own, (own + 1) % self._vocab)


def undialled(drafter: Drafter) -> None:
    """Let a drafter draft its own tokens again."""
    vars(drafter).pop("draft", None)
