"""Logits through pages, in chunks and as trees, against transformers' forward of whole texts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from checks.lossless.poison import poison
from checks.zoo.near_ties import NearTies
from specdecode_engine.model.kv.delta_states import DeltaStates, DeltaView
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.model.kv.kv_views import PagedView
from specdecode_engine.model.target.language_model import LanguageModel
from specdecode_kernels import TORCH, AttentionMetadata, Backend

TEXTS = 2
LENGTH = 44  # more than twice the window
PREFIX = 37
TOLERANCE = 1e-4
MOST_DRAWS = 50
PARENTS = (0, 0, 0, 0, 0, 1, 1, 2, 5)
"""A tree of four children and their descendants; the root is its own parent."""


@dataclass(frozen=True, slots=True)
class PagedTexts:
    """Several texts in one KV cache, each over pages of its own in random order."""

    cache: KVCache
    pages: Tensor  # [texts, pages] i64
    first_rows: Tensor  # [texts] i64, of the texts' rotary tables
    states: DeltaStates | None  # of recurrent layers, one for each text

    @classmethod
    def make(
        cls,
        model: LanguageModel,
        page_size: int,
        ops: Backend = TORCH,
        texts: int = TEXTS,
        lengths: Sequence[int] = (),
    ) -> "PagedTexts":
        """Allocate a cache of NaN for texts with a tree after each.

        Args:
            lengths: that the texts may come to; LENGTH by default.
        """
        each = -(-(LENGTH + len(PARENTS)) // page_size)
        cache = KVCache(
            model.config.layer_map,
            1 + texts * each,
            page_size,
            model.dtype,
            model.device,
            ops=ops,
        )
        poison(cache)
        params, states = model.delta_params, None
        if params is not None:
            states = DeltaStates(params, texts, 0, len(PARENTS), model.dtype, ops)
        order = torch.randperm(texts * each, generator=torch.Generator().manual_seed(3))
        first = [model.rotary_limits.first_row(n) for n in lengths or [LENGTH] * texts]
        return cls(cache, (order + 1).view(texts, each), torch.tensor(first), states)

    def slots(self, owners: Tensor, rows: Tensor) -> Tensor:
        """Rows of the cache of the given rows of texts, [n] i64."""
        size = self.cache.page_size
        return self.pages[owners, rows // size] * size + rows % size

    def spans(self, spans: list[tuple[int, int, int]]) -> tuple[Tensor, PagedView]:
        """Lay out (text, start, end) spans of consecutive positions, each after the one before."""
        positions = torch.cat([torch.arange(start, end) for _, start, end in spans])
        owners = torch.tensor([text for text, start, end in spans for _ in range(start, end)])
        device = self.cache.groups[0].k.device
        layout = AttentionMetadata(
            page_table=self.pages[[text for text, _, _ in spans]].to(device),
            page_size=self.cache.page_size,
            qo_lens=tuple(end - start for _, start, end in spans),
            kv_lens=(positions + 1).to(device),
            max_kv_len=max(end for _, _, end in spans),
        )
        delta = self._delta(owners.to(device), layout, len(spans))
        view = PagedView(self.cache, self.slots(owners, positions).to(device), layout, delta=delta)
        return (positions + self.first_rows[owners]).to(device), view

    def tree(self, text: int, mask: Tensor, depths: Tensor) -> tuple[Tensor, PagedView]:
        """Lay out a tree after the prefix of a text; its root is the first node."""
        nodes = len(depths)
        layout = AttentionMetadata(
            page_table=self.pages[[text]],
            page_size=self.cache.page_size,
            qo_lens=(nodes,),
            kv_lens=torch.full((nodes,), PREFIX),
            max_kv_len=PREFIX,
        )
        owners = torch.tensor([text] * nodes)
        slots = self.slots(owners, PREFIX + torch.arange(nodes))
        positions = PREFIX + depths + self.first_rows[text]
        delta = self._delta(owners, layout, 0, mask)
        return positions, PagedView(self.cache, slots, layout, mask, delta=delta)

    def _delta(
        self,
        owners: Tensor,
        layout: AttentionMetadata,
        num_chunks: int,
        ancestry: Tensor | None = None,
    ) -> DeltaView | None:
        if self.states is None:
            return None
        if layout.uniform_qo_len is None:
            starts = torch.tensor([0, *layout.qo_lens]).cumsum(0).to(owners.device)
            layout = replace(layout, cu_seqlens_q=starts)
        return self.states.view(owners, layout, num_chunks, ancestry)


@dataclass(frozen=True, slots=True)
class DrawnTexts:
    """Random texts, a tree after the prefix of the second, and transformers' logits of both."""

    ids: Tensor  # [texts, length]
    nodes: Tensor  # [nodes]
    logits: Tensor  # [texts, length, vocab]
    node_logits: Tensor  # [nodes, vocab]
    redrawn: int  # draws before these in which some router nearly chose other experts


def draw_texts(reference: Any) -> DrawnTexts:
    """Draw each text, and the nodes, until no router of the model is close to other experts."""
    generator = torch.Generator().manual_seed(4)

    def first_safe(count: int, compute: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, int]:
        for redrawn in range(MOST_DRAWS):
            ids = torch.randint(
                6, reference.get_input_embeddings().num_embeddings, (count,), generator=generator
            )
            ties = NearTies()
            with torch.no_grad(), ties.watching(reference):
                logits = compute(ids)
            if not ties.found:
                return ids, logits, redrawn
        raise ValueError(f"each of {MOST_DRAWS} draws has a router that is close to other experts")

    drawn = [first_safe(LENGTH, lambda ids: reference(ids[None]).logits[0]) for _ in range(TEXTS)]
    texts, logits, counts = zip(*drawn, strict=True)
    _, mask = TORCH.build_tree_mask(torch.tensor([PARENTS]), 3)

    def ends_of_paths(nodes: Tensor) -> Tensor:
        paths = [torch.cat((texts[1][:PREFIX], nodes[shown])) for shown in mask[0]]
        # Transformers' angles may depend on the length, so that all paths are computed at one.
        whole = [reference(functional.pad(path, (0, LENGTH - len(path)))[None]) for path in paths]
        ends = [one.logits[0, len(path) - 1] for one, path in zip(whole, paths, strict=True)]
        return torch.stack(ends)

    nodes, ends, count = first_safe(len(PARENTS), ends_of_paths)
    return DrawnTexts(torch.stack(texts), nodes, torch.stack(logits), ends, sum(counts) + count)


def worst_differences(
    reference: Any, model: LanguageModel, texts: DrawnTexts | None = None
) -> dict[str, float]:
    """Return the largest difference of each way to compute, in parts of the largest logit."""
    texts = texts or draw_texts(reference)
    found = {
        name: _difference(compute_spans(model, page_size, texts.ids, steps), texts.logits)
        for name, page_size, steps in _ways()
    }
    found["tree"] = _difference(compute_tree(model, texts), texts.node_logits)
    if len(model.rotary_limits.limits) > 1:
        found["two rotary tables"] = tables_difference(reference, model, texts.ids)
    return found


def _ways() -> Iterator[tuple[str, int, list[list[tuple[int, int, int]]]]]:
    whole = [(text, 0, LENGTH) for text in range(TEXTS)]
    yield "prefill", 4, [whole]
    decode = [[(text, at, at + 1) for text in range(TEXTS)] for at in range(PREFIX, LENGTH)]
    yield "decode, pages of 1", 1, [[(0, 0, PREFIX), (1, 0, PREFIX)], *decode]
    chunks = [[(0, 0, 21)], [(0, 21, PREFIX), (1, 0, PREFIX)]]
    yield "decode, pages of 16", 16, [*chunks, *decode]


def compute_spans(
    model: LanguageModel,
    page_size: int,
    ids: Tensor,
    steps: list[list[tuple[int, int, int]]],
    lengths: Sequence[int] = (),
) -> Tensor:
    """Compute forwards of spans; return the logits of every position [texts, length, vocab].

    Args:
        lengths: see `PagedTexts.make`.
    """
    texts = PagedTexts.make(model, page_size, lengths=lengths)
    logits = torch.full((*ids.shape, model.config.vocab_size), torch.nan)
    for spans in steps:
        positions, view = texts.spans(spans)
        rows = torch.cat([ids[text, start:end] for text, start, end in spans])
        scores = model.logits(model.forward(rows, positions, view)[0])
        parts = scores.split_with_sizes([end - start for _, start, end in spans])
        for (text, start, end), part in zip(spans, parts, strict=True):
            logits[text, start:end] = part
    return logits


def compute_tree(model: LanguageModel, texts: DrawnTexts) -> Tensor:
    """Compute the nodes of the tree in one forward: [nodes, vocab]."""
    depths, mask = TORCH.build_tree_mask(torch.tensor([PARENTS]), 3)
    paged = PagedTexts.make(model, 4)
    positions, view = paged.spans([(1, 0, PREFIX)])
    model.forward(texts.ids[1, :PREFIX], positions, view)
    positions, view = paged.tree(1, mask, depths[0])
    return model.logits(model.forward(texts.nodes, positions, view)[0])


def tables_difference(reference: Any, model: LanguageModel, ids: Tensor) -> float:
    """Compare a batch of a short and of a long text, each with the rotary table of its length."""
    short = model.rotary_limits.limits[0]
    cuts = [0, 9, 2 * short // 3, *range(short - 3, short + 1)]
    steps = [[(0, a, b), (1, a, b)] for a, b in pairwise(cuts)]
    steps += [[(1, at, at + 1)] for at in range(short, LENGTH)]
    logits = compute_spans(model, 4, ids, steps, lengths=(short, LENGTH))
    with torch.no_grad():
        wanted = [reference(ids[:1, :short]).logits[0], reference(ids[1:]).logits[0]]
    return max(_difference(logits[0, :short], wanted[0]), _difference(logits[1], wanted[1]))


def _difference(logits: Tensor, wanted: Tensor) -> float:
    return float((logits - wanted).abs().max() / wanted.abs().max())
