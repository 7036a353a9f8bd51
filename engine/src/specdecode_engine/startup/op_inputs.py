"""Tensors without memory as the steps of an engine have them, and calls of ops on them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from specdecode_engine.model.drafts.draft_config import DraftConfig
from specdecode_engine.model.kv.layer_map import LayerShape
from specdecode_engine.model.target.config import DecoderConfig
from specdecode_engine.startup.attention import layer_params
from specdecode_engine.startup.kernel_needs import KernelNeeds
from specdecode_kernels import (
    META,
    AttentionMetadata,
    AttentionParams,
    Backend,
    LayerKV,
    OpCall,
    SamplingParamsBatch,
    TreeKV,
)

OpsIn = Callable[[int | None], Backend]
"""Returns the ops, with attention in as many splits as given."""

SPLITS = (1, 2, 4, 8, 16, 32)
"""Of attention: how many there are depends on lengths and on the device."""


class AttentionRows(NamedTuple):
    """What attention is for, and its rows."""

    why: str
    qo_lens: tuple[int, ...]  # query rows of each request
    tree_rows: int = 0  # of tree KV
    has_starts: bool = False  # requests have numbers of rows that the device alone knows


def empty(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def qkv(
    needs: KernelNeeds, model: DraftConfig, shape: LayerShape, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as one projection leaves them, or two where values have a size of their own.

    A layer without keys and values has queries alone.
    """
    q_heads = model.decoder.num_attention_heads
    if not model.keeps_kv:
        q = empty(rows, q_heads, shape.k_head_dim, dtype=needs.dtype)
        return q, q[:, :0], q[:, :0]
    kv_heads = shape.kv_heads
    if shape.is_latent:
        q, k = (empty(rows, heads, shape.k_head_dim, dtype=needs.dtype) for heads in (q_heads, 1))
        return q, k, k[..., : shape.v_head_dim]
    if shape.k_head_dim == shape.v_head_dim:
        parts = [q_heads, kv_heads, kv_heads]
        heads = empty(rows, sum(parts), shape.k_head_dim, dtype=needs.dtype)
        q, k, v = heads.split_with_sizes(parts, dim=1)
        return q, k, v
    heads = empty(rows, q_heads + kv_heads, shape.k_head_dim, dtype=needs.dtype)
    q, k = heads.split_with_sizes([q_heads, kv_heads], dim=1)
    return q, k, empty(rows, kv_heads, shape.v_head_dim, dtype=needs.dtype)


def layer_kv(needs: KernelNeeds, shape: LayerShape) -> LayerKV:
    rows = 16 * needs.page_size
    k = empty(rows, shape.kv_heads, shape.k_head_dim, dtype=needs.kv_dtype)
    if shape.is_latent:
        return LayerKV(k, k[..., : shape.v_head_dim], is_latent=True)
    return LayerKV(k, empty(rows, shape.kv_heads, shape.v_head_dim, dtype=needs.kv_dtype))


def norm_dtype(needs: KernelNeeds, decoder: DecoderConfig) -> torch.dtype:
    """Return the type of norms' weights; see `Weights.norm`."""
    return torch.float32 if decoder.is_norm_weight_less_one else needs.dtype


def attend(
    needs: KernelNeeds,
    model: DraftConfig,
    ops: Backend,
    shape: LayerShape,
    params: AttentionParams,
    qo_lens: tuple[int, ...],
    tree_rows: int,
    starts: Tensor | None,
    *,
    with_lse: bool = False,
) -> None:
    rows, batch = sum(qo_lens), len(qo_lens)
    q, k, v = qkv(needs, model, shape, rows)
    page_table = empty(batch, 8)
    metadata = AttentionMetadata(
        page_table, needs.page_size, qo_lens, empty(rows), needs.page_size * 8, starts
    )
    tree_kv = None
    if tree_rows:
        # In a scratch of more rows, as a chain's draft steps have them.
        scratch_rows = max(tree_rows, *(shape.scratch_rows for shape in needs.shapes))
        tree_k, tree_v = (
            empty(batch, scratch_rows, *part.shape[1:], dtype=needs.dtype)[:, :tree_rows]
            for part in (k, v)
        )
        if shape.is_latent:
            tree_v = tree_k[..., : shape.v_head_dim]
        mask = empty(batch, qo_lens[0], scratch_rows, dtype=torch.bool)[:, :, :tree_rows]
        tree_kv = TreeKV(tree_k, tree_v, mask if qo_lens[0] == 1 else mask.contiguous())
    attend = ops.attend_with_lse if with_lse else ops.attend
    attend(q, layer_kv(needs, shape), metadata, tree_kv, params)


def sampling_params(
    batch: int, *, is_filtered: bool = False, has_top_k_and_top_p: bool = False
) -> SamplingParamsBatch:
    floats, integers = empty(3, batch, dtype=torch.float64), empty(2, batch)
    columns = floats[0], integers[0], floats[1], floats[2], integers[1]
    return SamplingParamsBatch(*columns, is_filtered or has_top_k_and_top_p, has_top_k_and_top_p)


def prefill_rows(needs: KernelNeeds) -> Iterator[AttentionRows]:
    powers = [1 << n for n in range(needs.chunk_tokens.bit_length())]
    for chunk in sorted({*powers, needs.chunk_tokens}):
        yield AttentionRows("prefill", (chunk,), has_starts=True)
        yield AttentionRows("prefill with other requests", (chunk, 1), has_starts=True)


def attention_calls(
    needs: KernelNeeds, name: str, model: DraftConfig, ops_in: OpsIn, rows: Iterable[AttentionRows]
) -> Iterator[OpCall]:
    """Yield the calls of attention in every shape of layers of a model."""
    for splits, one in product(SPLITS, rows):
        for shape, params in layer_params(model).items():
            starts = empty(len(one.qo_lens) + 1) if one.has_starts else None
            arguments = shape, params, one.qo_lens, one.tree_rows, starts
            yield (
                f"{one.why} of the {name}",
                partial(attend, needs, model, ops_in(splits), *arguments),
            )


def draft_attention_rows(needs: KernelNeeds) -> Iterator[AttentionRows]:
    """Yield the rows of prompts, and those that a draft lacks after steps without one."""
    yield from prefill_rows(needs)
    for rows in (8, 16, 32, 64, 128):
        yield AttentionRows("catching up", (rows,))


def draft_calls(
    needs: KernelNeeds,
    draft: DraftConfig,
    ops_in: OpsIn,
    rows: Iterable[AttentionRows],
    counts: Sequence[int] = (1,),
) -> Iterator[OpCall]:
    """Yield the calls of attention by a draft, and those that sample its tokens.

    Args:
        counts: of the draft tokens of each request that are sampled at once.
    """
    yield from attention_calls(needs, "draft", draft, ops_in, tuple(rows))
    for batch, count in product(needs.batch_sizes, counts):
        yield from draft_sampling_calls(draft, batch, count, ops_in(None))


def draft_sampling_calls(
    draft: DraftConfig, batch: int, count: int, ops: Backend
) -> Iterator[OpCall]:
    """Yield the calls that sample `count` draft tokens of each request at once."""
    vocab = draft.draft_vocab_size
    ids = empty(vocab) if vocab != draft.vocab_size else None
    logits = empty(batch, count, vocab, dtype=torch.float32)
    positions = empty(batch, count)
    for params in (None, sampling_params(batch)):
        yield "sampling of draft tokens", partial(ops.sample, logits, params, positions, ids)
