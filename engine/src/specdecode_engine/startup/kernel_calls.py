"""The calls of ops that an engine's steps make, on tensors without memory.

What differs from one batch to the next is varied; sizes of the model and of its drafts are the
engine's. Triton's launchers decide which kernels the calls need.
"""

from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.model.config import DecoderConfig, LlamaConfig
from specdecode_engine.model.dflash_config import BlockConfig
from specdecode_engine.model.draft_config import DraftConfig, HeadConfig
from specdecode_engine.model.layer_map import LayerShape
from specdecode_engine.model.mtp_config import MtpConfig
from specdecode_engine.model.sparse_mlp import ExpertTensors, SparseMlpConfig
from specdecode_engine.startup.attention import layer_params
from specdecode_engine.startup.kernel_needs import KernelNeeds
from specdecode_kernels import (
    DEFAULT_ATTENTION,
    AttentionMetadata,
    AttentionParams,
    Backend,
    DraftedNodes,
    ExpertRouting,
    ExpertWeights,
    LayerKV,
    PenaltyParamsBatch,
    SamplingParamsBatch,
    TreeKV,
)
from specdecode_kernels.triton.variants import META, OpCall, meta_backend

SOME_NODES = "verification of some nodes of trees"

SPLITS = (1, 2, 4, 8, 16, 32)
"""Of attention: how many there are depends on lengths and on the device."""


def op_calls(needs: KernelNeeds, capability: int) -> Iterator[OpCall]:
    ops = meta_backend(capability)
    for name, model in needs.models.items():
        yield from _layer_calls(needs, name, model, ops)
        layers = layer_params(model)
        for splits in SPLITS:
            in_splits = meta_backend(capability, splits)
            if isinstance(model, BlockConfig):
                yield from _block_calls(needs, model, in_splits, layers)
            else:
                yield from _attention_calls(needs, name, model, in_splits, layers)
        yield from _softcap_calls(name, model, ops)
        if isinstance(model, BlockConfig):
            yield from _context_calls(needs, model, ops)
    yield from _sampling_calls(needs, ops)
    yield from _verify_calls(needs, ops)


def _empty(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def _qkv(
    needs: KernelNeeds, model: DraftConfig, shape: LayerShape, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as one projection leaves them, or two where values have a size of their own."""
    q_heads, kv_heads = model.decoder.num_attention_heads, shape.kv_heads
    if shape.k_head_dim == shape.v_head_dim:
        parts = [q_heads, kv_heads, kv_heads]
        heads = _empty(rows, sum(parts), shape.k_head_dim, dtype=needs.dtype)
        q, k, v = heads.split_with_sizes(parts, dim=1)
        return q, k, v
    heads = _empty(rows, q_heads + kv_heads, shape.k_head_dim, dtype=needs.dtype)
    q, k = heads.split_with_sizes([q_heads, kv_heads], dim=1)
    return q, k, _empty(rows, kv_heads, shape.v_head_dim, dtype=needs.dtype)


def _layer_kv(needs: KernelNeeds, shape: LayerShape) -> LayerKV:
    rows = 16 * needs.page_size
    return LayerKV(
        _empty(rows, shape.kv_heads, shape.k_head_dim, dtype=needs.kv_dtype),
        _empty(rows, shape.kv_heads, shape.v_head_dim, dtype=needs.kv_dtype),
    )


def _layer_calls(
    needs: KernelNeeds, name: str, model: DraftConfig, ops: Backend
) -> Iterator[OpCall]:
    decoder, dtype, rows = model.decoder, needs.dtype, 3
    x, weight = (
        _empty(rows, decoder.hidden_size, dtype=dtype),
        _empty(decoder.hidden_size, dtype=_norm_dtype(needs, decoder)),
    )
    q, k, _ = _qkv(needs, model, model.layer_map.shapes[0], rows)
    angles = _empty(rows, decoder.head_dim // 2, dtype=torch.float32)
    gate, up = _empty(rows, 2 * decoder.intermediate_size, dtype=dtype).chunk(2, dim=-1)
    yield f"layers of the {name}", lambda: ops.rms_norm(x, weight, decoder.rms_norm_eps)
    yield f"layers of the {name}", lambda: ops.add_rms_norm(x, x, weight, decoder.rms_norm_eps)
    yield f"layers of the {name}", lambda: ops.apply_rope(q, k, angles, angles)
    if decoder.qk_norm:
        yield from _qk_norm_calls(needs, name, model, ops)
    is_gelu = decoder.activation == "gelu_tanh"
    activate = ops.gelu_tanh_and_mul if is_gelu else ops.silu_and_mul
    yield f"layers of the {name}", lambda: activate(gate, up)
    if isinstance(model, LlamaConfig | MtpConfig) and model.sparse_mlp is not None:
        call = partial(_experts, model.sparse_mlp, x, ops)
        yield f"experts of the {name}", call
        shared = model.sparse_mlp.shared_expert
        if shared is not None:
            both = _empty(rows, 2 * shared.intermediate_size, dtype=dtype).chunk(2, dim=-1)
            yield f"shared expert of the {name}", partial(ops.silu_and_mul, *both)
    for shape in model.layer_map.shapes:
        new = _qkv(needs, model, shape, rows)[1:]
        call = partial(ops.store_kv, _layer_kv(needs, shape), _empty(rows), *new)
        yield f"KV cache of the {name}", call


def _experts(config: SparseMlpConfig, x: Tensor, ops: Backend) -> None:
    experts, inner, hidden = config.num_experts, config.moe_intermediate_size, x.shape[1]
    has_bias = config.tensors is ExpertTensors.STACKED
    weights = ExpertWeights(
        _empty(experts, 2 * inner, hidden, dtype=x.dtype),
        _empty(experts, hidden, inner, dtype=x.dtype),
        _empty(experts, 2 * inner, dtype=x.dtype) if has_bias else None,
        _empty(experts, hidden, dtype=x.dtype) if has_bias else None,
    )
    chosen = len(x), config.routing.top_k
    routing = ExpertRouting(
        _empty(*chosen, dtype=torch.int32), _empty(*chosen, dtype=torch.float32)
    )
    ops.experts(x, routing, weights, config.activation)


def _norm_dtype(needs: KernelNeeds, decoder: DecoderConfig) -> torch.dtype:
    """Return the type of norms' weights; see `Weights.norm`."""
    return torch.float32 if decoder.is_norm_weight_less_one else needs.dtype


def _qk_norm_calls(
    needs: KernelNeeds, name: str, model: DraftConfig, ops: Backend
) -> Iterator[OpCall]:
    decoder = model.decoder
    weight = _empty(decoder.head_dim, dtype=_norm_dtype(needs, decoder))
    for rows in (1, 3):  # heads of one row are read in place, those of several are copied
        for heads in _qkv(needs, model, model.layer_map.shapes[0], rows)[:2]:
            call = partial(ops.rms_norm, heads, weight, decoder.rms_norm_eps)
            yield f"norms of queries and keys of the {name}", call


def _softcap_calls(name: str, model: DraftConfig, ops: Backend) -> Iterator[OpCall]:
    if isinstance(model, LlamaConfig) and model.logit_softcap is not None:
        for rows in (1, 3):
            logits = _empty(rows, model.vocab_size, dtype=torch.float32)
            yield f"logits of the {name}", partial(ops.softcap, logits, model.logit_softcap)


def _attention_calls(
    needs: KernelNeeds,
    name: str,
    model: DraftConfig,
    ops: Backend,
    layers: Mapping[LayerShape, AttentionParams],
) -> Iterator[OpCall]:
    for shape, params in layers.items():
        for why, qo_lens, tree_rows in _attention_shapes(needs, name):
            starts = _empty(len(qo_lens) + 1) if why.startswith(("prefill", SOME_NODES)) else None
            call = partial(_attend, needs, model, ops, shape, params, qo_lens, tree_rows, starts)
            yield f"{why} of the {name}", call


def _attention_shapes(needs: KernelNeeds, name: str) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Yield what attention is for, the query rows of each request and the rows of tree KV."""
    powers = [1 << n for n in range(needs.chunk_tokens.bit_length())]
    for chunk in sorted({*powers, needs.chunk_tokens}):
        yield "prefill", (chunk,), 0
        yield "prefill with other requests", (chunk, 1), 0
    if name == "draft":  # of one request, after steps without a draft
        for rows in (8, 16, 32, 64, 128):
            yield "catching up", (rows,), 0
    trees = [shape.num_tokens for shape in needs.shapes if shape.topk > 1 and shape.num_steps]
    for nodes in trees if name == "target" else ():
        for rows in sorted({*(1 << n for n in range(nodes.bit_length())), nodes}):
            yield SOME_NODES, (rows, 1), nodes
    for batch in needs.batch_sizes:
        if name == "draft":
            for rows in range(1, needs.path_length + 1):
                yield "catching up", (rows,) * batch, 0
        for shape in needs.shapes:
            if name == "draft":
                for step in range(shape.num_steps - 1):
                    yield "draft steps", (shape.topk,) * batch, (step + 1) * shape.topk
            elif shape.topk > 1 and shape.num_steps:
                yield "verification of trees", (shape.num_tokens,) * batch, shape.num_tokens
            else:
                yield "decode and verification", (shape.num_tokens,) * batch, 0


def _block_calls(
    needs: KernelNeeds,
    model: BlockConfig,
    ops: Backend,
    layers: Mapping[LayerShape, AttentionParams],
) -> Iterator[OpCall]:
    """Attention of blocks; see `BlockView`."""
    rows, why = model.block_size, "blocks of the draft"
    for batch in needs.batch_sizes:
        blocks = (rows,) * batch, rows, None
        for shape, params in layers.items():
            yield why, partial(_attend, needs, model, ops, shape, params, *blocks)
            if shape.sliding_window is None or all(model.causal_layers):
                continue
            for part in (params, DEFAULT_ATTENTION):
                call = partial(_attend, needs, model, ops, shape, part, *blocks, with_lse=True)
                yield why, call
            yield why, partial(_merge, needs, model, ops, rows * batch)


def _merge(needs: KernelNeeds, model: BlockConfig, ops: Backend, rows: int) -> None:
    heads = model.decoder.num_attention_heads
    out = _empty(rows, heads, model.decoder.head_dim, dtype=needs.dtype)
    lse = _empty(rows, heads, dtype=torch.float32)
    ops.merge_states(out, lse, out, lse)


def _context_calls(needs: KernelNeeds, model: BlockConfig, ops: Backend) -> Iterator[OpCall]:
    """Keys and values of known positions, as one projection of all layers leaves them."""
    decoder, layers, why = model.decoder, model.num_hidden_layers, "context of the draft"
    weight = _empty(decoder.head_dim, dtype=needs.dtype)
    for rows in (1, 3):
        shape = rows, 2, layers, decoder.num_key_value_heads, decoder.head_dim
        keys, values = (part[:, -1] for part in _empty(*shape, dtype=needs.dtype).unbind(1))
        k = _empty(rows, *shape[3:], dtype=needs.dtype)
        angles = _empty(rows, decoder.head_dim // 2, dtype=torch.float32)
        yield why, partial(ops.rms_norm, keys, weight, decoder.rms_norm_eps)
        yield why, partial(ops.apply_rope, k, k[:, :0], angles, angles)
        for one in model.layer_map.shapes:
            yield why, partial(ops.store_kv, _layer_kv(needs, one), _empty(rows), k, values)


def _attend(
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
    q, k, v = _qkv(needs, model, shape, rows)
    page_table = _empty(batch, 8)
    metadata = AttentionMetadata(
        page_table, needs.page_size, qo_lens, _empty(rows), needs.page_size * 8, starts
    )
    tree_kv = None
    if tree_rows:
        # In a scratch of more rows, as a chain's draft steps have them.
        scratch_rows = max(tree_rows, *(shape.scratch_rows for shape in needs.shapes))
        tree_k, tree_v = (
            _empty(batch, scratch_rows, *part.shape[1:], dtype=needs.dtype)[:, :tree_rows]
            for part in (k, v)
        )
        mask = _empty(batch, qo_lens[0], scratch_rows, dtype=torch.bool)[:, :, :tree_rows]
        tree_kv = TreeKV(tree_k, tree_v, mask if qo_lens[0] == 1 else mask.contiguous())
    attend = ops.attend_with_lse if with_lse else ops.attend
    attend(q, _layer_kv(needs, shape), metadata, tree_kv, params)


def _sampling_params(batch: int, *, is_filtered: bool) -> SamplingParamsBatch:
    floats, integers = _empty(3, batch, dtype=torch.float64), _empty(2, batch)
    return SamplingParamsBatch(
        floats[0], integers[0], floats[1], floats[2], integers[1], is_filtered
    )


def _logits(needs: KernelNeeds, batch: int, nodes: int) -> Iterator[Tensor]:
    """Logits of a batch, and those after other rows, whose address may be divided otherwise."""
    vocab = needs.models["target"].vocab_size
    rows = _empty(batch * nodes + 1, vocab, dtype=torch.float32)
    yield rows[:-1].view(batch, nodes, vocab)
    yield rows[1:].view(batch, nodes, vocab)


def _sampling_calls(needs: KernelNeeds, ops: Backend) -> Iterator[OpCall]:
    for batch in needs.batch_sizes:
        kinds = {
            "greedy sampling": None,
            "sampling": _sampling_params(batch, is_filtered=False),
            "sampling with filters": _sampling_params(batch, is_filtered=True),
        }
        for nodes in sorted({1, *(shape.num_tokens for shape in needs.shapes)}):
            for logits in _logits(needs, batch, nodes):
                for why, params in kinds.items():
                    yield why, partial(ops.sample, logits, params, _empty(batch, nodes), None)
        draft = needs.models.get("draft")
        if draft is not None:
            steps = {shape.num_steps for shape in needs.shapes if shape.num_steps}
            for count in sorted(steps) if isinstance(draft, BlockConfig) else (1,):
                yield from _draft_sampling_calls(draft, batch, count, ops)


def _draft_sampling_calls(
    draft: DraftConfig, batch: int, count: int, ops: Backend
) -> Iterator[OpCall]:
    """Sampling of `count` tokens of each request at once."""
    ids, vocab = None, draft.vocab_size
    if isinstance(draft, HeadConfig) and draft.draft_vocab_size != vocab:
        vocab = draft.draft_vocab_size
        ids = _empty(vocab)
    logits = _empty(batch, count, vocab, dtype=torch.float32)
    positions = _empty(batch, count)
    for params in (None, _sampling_params(batch, is_filtered=False)):
        yield "sampling of draft tokens", partial(ops.sample, logits, params, positions, ids)


def _penalty_params(batch: int, vocab: int) -> PenaltyParamsBatch:
    counts, bias = (_empty(2, vocab, dtype=torch.float32) for _ in range(2))
    numbers = _empty(batch, 3, dtype=torch.float64)
    return PenaltyParamsBatch(
        counts, _empty(2, vocab, dtype=torch.bool), bias, _empty(batch), numbers
    )


def _penalty_calls(needs: KernelNeeds, batch: int, ops: Backend) -> Iterator[OpCall]:
    vocab = needs.models["target"].vocab_size
    penalties = _penalty_params(batch, vocab)
    for shape in (DraftShape.chain(0), *needs.shapes):  # first tokens have no draft
        nodes, on_path = shape.num_tokens, None
        if shape.num_steps:
            parents = _empty(batch, nodes) if shape.topk > 1 else None
            on_path = DraftedNodes(_empty(batch, nodes - 1), parents, shape.num_steps)
        for logits in _logits(needs, batch, nodes):
            yield "penalties", partial(ops.apply_penalties, logits, penalties, on_path)


def _verify_calls(needs: KernelNeeds, ops: Backend) -> Iterator[OpCall]:
    for batch in needs.batch_sizes:
        yield from _penalty_calls(needs, batch, ops)
        for shape in needs.shapes:
            tokens, drafted = _empty(batch, shape.num_tokens), _empty(batch, shape.num_tokens - 1)
            if shape.topk > 1 and shape.num_steps:
                yield from _tree_calls(needs, shape, batch, ops)
            elif shape.num_steps:
                yield "verification", partial(ops.verify_chain, tokens, drafted)


def _tree_calls(
    needs: KernelNeeds, shape: DraftShape, batch: int, ops: Backend
) -> Iterator[OpCall]:
    target = needs.models["target"]
    nodes, length, k = shape.num_tokens, shape.path_length, shape.topk
    candidates = k + (shape.num_steps - 1) * k * k
    tokens, parents, drafted = _empty(batch, nodes), _empty(batch, nodes), _empty(batch, nodes - 1)
    # As tokens and parents of candidates lie: in one tensor, at addresses that divide differently.
    path, (pooled, above) = _empty(batch, length), _empty(batch, 2, candidates).unbind(1)
    scores = _empty(batch, candidates, dtype=torch.float32)
    why = "draft trees"
    yield why, lambda: ops.select_tree_nodes(scores, pooled, above, nodes - 1)
    yield why, lambda: ops.build_tree_mask(parents, shape.num_steps)
    yield why, lambda: ops.verify_tree(tokens, drafted, parents, length)
    at, pages = _empty(batch), _empty(batch + 1, 8)
    layer_map = target.layer_map
    for one, owners in zip(layer_map.shapes, layer_map.owners, strict=True):
        if one.k_head_dim == one.v_head_dim:  # torch moves rows of two sizes
            pool = _layer_kv(needs, one).k[None].expand(len(owners), -1, -1, -1)
            yield why, partial(ops.compact_kv, pool, pool, pages, at, at, path, needs.page_size)
    draft, hidden = needs.models.get("draft"), []
    if isinstance(draft, HeadConfig):
        width = draft.aux_spec.width(target.decoder.hidden_size)
        hidden = [_empty(batch, nodes, width, dtype=needs.dtype)]
    for values in (tokens, *_logits(needs, batch, nodes), *hidden):
        yield why, partial(ops.gather_accepted, values, path)
