"""Every published layout of a head equals a slow recomputation, over chains and trees alike.

The heads' configs declare 4 positions, and the tests use far more. The texts lie over shuffled
pages of a poisoned pool, drafted rows in a poisoned scratch, so a row read by mistake shows.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from checks.lossless.poison import poison
from specdecode_engine.model.kv.draft_scratch import DraftScratch
from specdecode_engine.model.kv.kv_views import ScratchView
from specdecode_kernels import AttentionMetadata

CPU = torch.device("cpu")
LENGTHS = [8, 1, 5]
STEPS = 3
PARENTS = [[0, 0, 0], [2, 0, 2], [1, 1, 0]]  # of each step's nodes, in the step before

Text = tuple[Tensor, Tensor]  # ids [rows], hidden states [rows, 12]


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("topk", [1, 3])
def test_texts_and_drafts_equal_a_recomputation(
    loaded: Any, texts: Any, page_size: int, topk: int
) -> None:
    head, config = loaded.head, loaded.head.config
    cached = texts.make(config, 3, 16, page_size, layers=config.num_hidden_layers)
    ends, recurrent = read_texts(loaded, cached)
    scratch = DraftScratch(config.layer_map, 4, STEPS * topk, torch.float32, CPU)
    poison(scratch)
    lengths = torch.tensor(LENGTHS).repeat_interleave(topk)
    prefix = AttentionMetadata(cached.pages, page_size, (topk,) * 3, lengths, max(LENGTHS))
    mask = torch.zeros(3, topk, 0, dtype=torch.bool)
    for step in range(STEPS):
        parents = [place % topk for place in PARENTS[step][:topk]]
        tokens = torch.randint(0, 31, (3, topk))
        ends = [
            [grown(family[p], token, outputs[p]) for token, p in zip(row, parents, strict=True)]
            for row, family, outputs in zip(tokens, ends, recurrent, strict=True)
        ]
        own = torch.eye(topk, dtype=torch.bool).expand(3, topk, topk)
        mask = torch.cat((mask[:, parents], own), dim=2)
        view = ScratchView(cached.pool, scratch, step * topk, prefix, mask if topk > 1 else None)
        hidden = recurrent[:, parents].flatten(0, 1)
        normed, output = head.forward(tokens.flatten(), hidden, lengths + step, view)
        recurrent = check(loaded, ends, normed, output)


def read_texts(loaded: Any, cached: Any) -> tuple[list[list[Text]], Tensor]:
    """Run the head over random texts; a node of a tree will be the end of a text of its own."""
    width = loaded.head.config.aux_spec.width(loaded.layout.target_hidden)
    features = [torch.randn(length, width) * 0.7 for length in LENGTHS]
    ids = [torch.randint(0, 31, (length,)) for length in LENGTHS]
    positions, view = cached.view(*[(text, 0, length) for text, length in enumerate(LENGTHS)])
    fused = loaded.head.fuse(torch.cat(features))
    normed, recurrent = loaded.head.forward(torch.cat(ids), fused, positions, view)
    ends = [[(row, loaded.fuse(own))] for row, own in zip(ids, features, strict=True)]
    last = torch.tensor(LENGTHS).cumsum(0) - 1
    return ends, check(loaded, ends, normed[last], recurrent[last])


def grown(text: Text, token: Tensor, parent: Tensor) -> Text:
    """A text with one more row: a drafted token and its parent's output."""
    return torch.cat((text[0], token[None])), torch.cat((text[1], parent[None].double()))


def check(loaded: Any, ends: list[list[Text]], final: Tensor, recurrent: Tensor) -> Tensor:
    """Compare rows with the ends of their texts; return the head's outputs [texts, nodes, 12]."""
    slow = [loaded.last(*text) for family in ends for text in family]
    logits, outputs = (torch.stack(column).float() for column in zip(*slow, strict=True))
    torch.testing.assert_close(recurrent, outputs, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(loaded.head.logits(final), logits, atol=1e-4, rtol=2e-5)
    return recurrent.view(len(ends), len(ends[0]), -1)
