"""The calls of ops that an engine's steps make, on tensors without memory.

What differs from one batch to the next is varied; sizes of the model and of its drafts are the
engine's. Triton's launchers decide which kernels the calls need.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.model.drafts.draft_config import DraftConfig, HeadConfig
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.layers.sparse_mlp import ExpertTensors, SparseMlpConfig
from specdecode_engine.model.target.config import DecoderConfig, LlamaConfig
from specdecode_engine.model.target.transformers_config import TransformersConfig
from specdecode_engine.model.transformers.loading import make_network
from specdecode_engine.model.transformers.model import AUDITED_POSITIONS, TransformersModel
from specdecode_engine.model.transformers.row_audit import ProbeView
from specdecode_engine.startup.delta_calls import delta_calls
from specdecode_engine.startup.draft_methods.method import DraftMethod
from specdecode_engine.startup.kernel_needs import KernelNeeds
from specdecode_engine.startup.latent_calls import latent_calls
from specdecode_engine.startup.op_inputs import (
    AttentionRows,
    attention_calls,
    empty,
    layer_kv,
    norm_dtype,
    prefill_rows,
    qkv,
    sampling_params,
)
from specdecode_kernels import (
    META,
    PROMPT_BLOCK,
    Backend,
    DraftedNodes,
    ExpertRouting,
    ExpertWeights,
    LayerKV,
    OpCall,
    PenaltyParamsBatch,
    Precision,
    QuantizedTensor,
    RowSplit,
)
from specdecode_kernels.triton.variants import meta_backend


def op_calls(needs: KernelNeeds, capability: int, method: DraftMethod) -> Iterator[OpCall]:
    """Yield every call of an engine on a device of this compute capability, such as 90."""
    ops_in = partial(meta_backend, capability)
    ops = ops_in(None)
    for name, model in needs.models.items():
        if isinstance(model, TransformersConfig):
            yield from _network_calls(needs, name, model, ops)
        else:
            yield from _layer_calls(needs, name, model, ops)
            yield from _softcap_calls(name, model, ops)
            yield from quantized_calls(needs, name, model, ops)
            yield from latent_calls(name, model, needs.dtype, ops)
        if isinstance(model, TransformersConfig) or model.decoder.latent is not None:
            yield from _kv_calls(needs, name, model, ops)
    target = needs.models["target"]
    if not isinstance(target, HeadConfig) and target.delta_layers is not None:
        yield from delta_calls(needs, target.delta_layers, ops)
    yield from attention_calls(needs, "target", target, ops_in, tuple(_target_rows(needs)))
    if "draft" in needs.models:
        yield from method.op_calls(needs, needs.models["draft"], ops_in)
    yield from _sampling_calls(needs, ops)
    yield from _verify_calls(needs, ops)


def _target_rows(needs: KernelNeeds) -> Iterator[AttentionRows]:
    yield from prefill_rows(needs)
    trees = [shape.num_tokens for shape in needs.shapes if shape.topk > 1 and shape.num_steps]
    for nodes in trees:
        for verified in sorted({*(1 << n for n in range(nodes.bit_length())), nodes}):
            why = "verification of some nodes of trees"
            yield AttentionRows(why, (verified, 1), nodes, has_starts=True)
    for batch, shape in product(needs.batch_sizes, needs.shapes):
        rows = (shape.num_tokens,) * batch
        if shape.topk > 1 and shape.num_steps:
            yield AttentionRows("verification of trees", rows, shape.num_tokens)
        else:
            yield AttentionRows("decode and verification", rows)


def _layer_calls(
    needs: KernelNeeds, name: str, model: DraftConfig, ops: Backend
) -> Iterator[OpCall]:
    decoder, dtype, rows = model.decoder, needs.dtype, 3
    x, weight = (
        empty(rows, decoder.hidden_size, dtype=dtype),
        empty(decoder.hidden_size, dtype=norm_dtype(needs, decoder)),
    )
    gate, up = empty(rows, 2 * decoder.intermediate_size, dtype=dtype).chunk(2, dim=-1)
    yield f"layers of the {name}", lambda: ops.rms_norm(x, weight, decoder.rms_norm_eps)
    yield f"layers of the {name}", lambda: ops.add_rms_norm(x, x, weight, decoder.rms_norm_eps)
    if needs.ranks > 1 and name == "target":
        parts = empty(needs.ranks, rows, decoder.hidden_size, dtype=dtype)
        yield (
            "layers of the target",
            lambda: ops.add_rms_norm(x, parts, weight, decoder.rms_norm_eps),
        )
    if decoder.latent is None:
        yield from _rope_calls(needs, name, model, ops)
    if decoder.qk_norm:
        yield from _qk_norm_calls(needs, name, model, ops)
    is_gelu = decoder.activation == "gelu_tanh"
    activate = ops.gelu_tanh_and_mul if is_gelu else ops.silu_and_mul
    yield f"layers of the {name}", lambda: activate(gate, up)
    if model.sparse_mlp is not None:
        route = partial(_route_experts, model.sparse_mlp, rows, dtype, ops)
        yield f"experts of the {name}", route
        for precision in (None, *needs.precisions):
            yield f"experts of the {name}", partial(_experts, model.sparse_mlp, precision, x, ops)
        shared = model.sparse_mlp.shared_expert
        if shared is not None:
            both = empty(rows, 2 * shared.intermediate_size, dtype=dtype).chunk(2, dim=-1)
            yield f"shared expert of the {name}", partial(ops.silu_and_mul, *both)


def _rope_calls(
    needs: KernelNeeds, name: str, model: DraftConfig, ops: Backend
) -> Iterator[OpCall]:
    """Angles alone where drafted tokens are kept in a scratch, else with the store into pages."""
    rows = 3
    for shape in model.layer_map.shapes:
        q, k, v = qkv(needs, model, shape, rows)
        angles = empty(rows, shape.k_head_dim // 2, dtype=torch.float32)
        if name != "target":
            yield f"layers of the {name}", partial(ops.apply_rope, q, k, angles, angles)
        store = partial(ops.rope_and_store_kv, layer_kv(needs, shape), empty(rows))
        for queries in (q, q[:, :0]) if model.keeps_kv else ():
            yield f"KV cache of the {name}", partial(store, queries, k, v, angles, angles)


def _kv_calls(needs: KernelNeeds, name: str, model: DraftConfig, ops: Backend) -> Iterator[OpCall]:
    rows = 3
    for shape in model.layer_map.shapes if model.keeps_kv else ():
        k, v = qkv(needs, model, shape, rows)[1:]
        kv = layer_kv(needs, shape)
        if shape.is_latent:
            kv, v = LayerKV(kv.k, kv.k[..., :0]), v[..., :0]
        call = partial(ops.store_kv, kv, empty(rows), k, v)
        yield f"KV cache of the {name}", call


def _network_calls(
    needs: KernelNeeds, name: str, config: TransformersConfig, ops: Backend
) -> Iterator[OpCall]:
    """Yield forwards of transformers' modules, whose ops depend on what was recognised."""
    network = make_network(config, needs.dtype)
    linears = Linears(ops, precision=needs.rounded[0] if needs.rounded else None)
    model = TransformersModel.of_network(config, network, AUDITED_POSITIONS, linears=linears)
    # Heads of one row are read in place, those of several are copied; many have tiles of their own.
    for rows in (1, *(ROWS if needs.rounded else ROWS[:1])):
        yield f"layers of the {name}", partial(_forward, model, rows)
    for rows in ROWS if needs.rounded else ():
        yield f"layers of the {name}", partial(_with_block, ops, rows, partial(_forward, model))


def _forward(model: TransformersModel, rows: int) -> None:
    ids = empty(rows)
    hidden, _ = model.forward(
        ids, ids, ProbeView(model.config.layer_map, model.config.delta_layers)
    )
    model.logits(hidden)


def _route_experts(config: SparseMlpConfig, rows: int, dtype: torch.dtype, ops: Backend) -> None:
    bias = empty(config.num_experts, dtype=torch.float32) if config.has_correction_bias else None
    ops.route_experts(empty(rows, config.num_experts, dtype=dtype), config.routing, bias)


def _experts(config: SparseMlpConfig, precision: Precision | None, x: Tensor, ops: Backend) -> None:
    def weight(*shape: int) -> Tensor | QuantizedTensor:
        if precision is None:
            return empty(*shape, dtype=x.dtype)
        return quantized(precision, shape, x.dtype)

    experts, inner, hidden = config.num_experts, config.moe_intermediate_size, x.shape[1]
    has_bias = config.tensors is ExpertTensors.STACKED
    weights = ExpertWeights(
        weight(experts, 2 * inner, hidden),
        weight(experts, hidden, inner),
        empty(experts, 2 * inner, dtype=x.dtype) if has_bias else None,
        empty(experts, hidden, dtype=x.dtype) if has_bias else None,
    )
    chosen = len(x), config.routing.top_k
    routing = ExpertRouting(empty(*chosen, dtype=torch.int32), empty(*chosen, dtype=torch.float32))
    ops.experts(x, routing, weights, config.activation)


def _qk_norm_calls(
    needs: KernelNeeds, name: str, model: DraftConfig, ops: Backend
) -> Iterator[OpCall]:
    decoder = model.decoder
    weight = empty(decoder.head_dim, dtype=norm_dtype(needs, decoder))
    for rows in (1, 3):  # heads of one row are read in place, those of several are copied
        for heads in qkv(needs, model, model.layer_map.shapes[0], rows)[:2]:
            call = partial(ops.rms_norm, heads, weight, decoder.rms_norm_eps)
            yield f"norms of queries and keys of the {name}", call


def _softcap_calls(name: str, model: DraftConfig, ops: Backend) -> Iterator[OpCall]:
    if isinstance(model, LlamaConfig) and model.logit_softcap is not None:
        for rows in (1, 3):
            logits = empty(rows, model.vocab_size, dtype=torch.float32)
            yield f"logits of the {name}", partial(ops.softcap, logits, model.logit_softcap)


def _logits(needs: KernelNeeds, batch: int, nodes: int) -> Iterator[Tensor]:
    """Logits of a batch, and those after other rows, whose address may be divided otherwise."""
    vocab = needs.models["target"].vocab_size
    rows = empty(batch * nodes + 1, vocab, dtype=torch.float32)
    yield rows[:-1].view(batch, nodes, vocab)
    yield rows[1:].view(batch, nodes, vocab)


def _sampling_calls(needs: KernelNeeds, ops: Backend) -> Iterator[OpCall]:
    for batch in needs.batch_sizes:
        kinds = {
            "greedy sampling": None,
            "sampling": sampling_params(batch),
            "sampling with filters": sampling_params(batch, is_filtered=True),
            "sampling with top-k and top-p": sampling_params(batch, has_top_k_and_top_p=True),
        }
        for nodes in sorted({1, *(shape.num_tokens for shape in needs.shapes)}):
            for logits in _logits(needs, batch, nodes):
                for why, params in kinds.items():
                    yield why, partial(ops.sample, logits, params, empty(batch, nodes), None)


def _penalty_params(batch: int, vocab: int) -> PenaltyParamsBatch:
    counts, bias = (empty(2, vocab, dtype=torch.float32) for _ in range(2))
    numbers = empty(batch, 3, dtype=torch.float64)
    return PenaltyParamsBatch(
        counts, empty(2, vocab, dtype=torch.bool), bias, empty(batch), numbers
    )


def _penalty_calls(needs: KernelNeeds, batch: int, ops: Backend) -> Iterator[OpCall]:
    vocab = needs.models["target"].vocab_size
    penalties = _penalty_params(batch, vocab)
    for shape in (DraftShape.chain(0), *needs.shapes):  # first tokens have no draft
        nodes, on_path = shape.num_tokens, None
        if shape.num_steps:
            parents = empty(batch, nodes) if shape.topk > 1 else None
            on_path = DraftedNodes(empty(batch, nodes - 1), parents, shape.num_steps)
        for logits in _logits(needs, batch, nodes):
            yield "penalties", partial(ops.apply_penalties, logits, penalties, on_path)


def _verify_calls(needs: KernelNeeds, ops: Backend) -> Iterator[OpCall]:
    for batch in needs.batch_sizes:
        yield from _penalty_calls(needs, batch, ops)
        for shape in needs.shapes:
            tokens, drafted = empty(batch, shape.num_tokens), empty(batch, shape.num_tokens - 1)
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
    tokens, parents, drafted = empty(batch, nodes), empty(batch, nodes), empty(batch, nodes - 1)
    # As tokens and parents of candidates lie: in one tensor, at addresses that divide differently.
    path, (pooled, above) = empty(batch, length), empty(batch, 2, candidates).unbind(1)
    scores = empty(batch, candidates, dtype=torch.float32)
    why = "draft trees"
    yield why, lambda: ops.select_tree_nodes(scores, pooled, above, nodes - 1)
    yield why, lambda: ops.build_tree_mask(parents, shape.num_steps)
    yield why, lambda: ops.verify_tree(tokens, drafted, parents, length)
    at, pages = empty(batch), empty(batch + 1, 8)
    layer_map = target.layer_map
    for one, owners in zip(layer_map.shapes, layer_map.owners, strict=True):
        if one.k_head_dim == one.v_head_dim or one.is_latent:  # torch moves rows of two sizes
            pool = layer_kv(needs, one).k[None].expand(len(owners), -1, -1, -1)
            v = pool[..., :0] if one.is_latent else pool
            yield why, partial(ops.compact_kv, pool, v, pages, at, at, path, needs.page_size)
    draft, hidden = needs.models.get("draft"), []
    if draft is not None and not draft.aux_spec.is_empty:
        width = draft.aux_spec.width(target.decoder.hidden_size)
        hidden = [empty(batch, nodes, width, dtype=needs.dtype)]
    for values in (tokens, *_logits(needs, batch, nodes), *hidden):
        yield why, partial(ops.gather_accepted, values, path)


ROWS = (3, 33)
"""Their tiles differ, and those of rows in whole blocks of a prompt."""


class _Map(NamedTuple):
    """One linear map of a layer."""

    outputs: int
    inputs: int
    has_bias: bool


def quantized_calls(
    needs: KernelNeeds, name: str, model: DraftConfig, ops: Backend
) -> Iterator[OpCall]:
    """Yield a call for every precision, map of a layer, and number of rows."""
    maps = model_maps(model)
    for precision, one, rows in product(needs.precisions, maps, ROWS):
        call = partial(_linear, ops, precision, one, dtype=needs.dtype)
        yield f"quantized weights of the {name}", partial(call, rows)
        yield f"quantized weights of the {name}", partial(_with_block, ops, rows, call)


def model_maps(model: DraftConfig) -> list[_Map]:
    """Return the maps of a model that may be quantized; see `layer_maps`."""
    scored = model.head_rows if isinstance(model, LlamaConfig) else model.vocab_size
    return [*layer_maps(model.decoder), _Map(scored, model.decoder.hidden_size, False)]


def layer_maps(decoder: DecoderConfig) -> Iterator[_Map]:
    """Yield the maps of a layer that may be quantized, fused as they are read."""
    hidden, inner = decoder.hidden_size, decoder.intermediate_size
    yield _Map(2 * inner, hidden, decoder.mlp_bias)
    yield _Map(hidden, inner, decoder.mlp_bias)
    if decoder.latent is not None:
        maps = decoder.latent.maps(hidden, decoder.num_attention_heads)
        yield _Map(sum(maps.pop(name)[0] for name in decoder.latent.joined), hidden, False)
        del maps["kv_b_proj"]  # of heads, never quantized
        yield from (_Map(outputs, inputs, False) for outputs, inputs in maps.values())
        return
    queries = decoder.num_attention_heads * decoder.head_dim
    keys = decoder.num_key_value_heads * decoder.head_dim
    gates = queries if decoder.has_output_gate else 0
    yield _Map(queries + 2 * keys + gates, hidden, decoder.qkv_bias)
    yield _Map(hidden, queries, decoder.output_bias)


def _linear(ops: Backend, precision: Precision, one: _Map, rows: int, dtype: torch.dtype) -> None:
    bias = empty(one.outputs, dtype=dtype) if one.has_bias else None
    weight = quantized(precision, (one.outputs, one.inputs), dtype)
    ops.linear(empty(rows, one.inputs, dtype=dtype), weight, bias)


def _with_block(ops: Backend, rows: int, call: Callable[[int], None]) -> None:
    """Call with rows, and with those of a whole block of a prompt."""
    if ops.row_paths is not None:
        with ops.row_paths.split(RowSplit(empty(rows), empty(PROMPT_BLOCK))):
            call(rows + PROMPT_BLOCK)


def quantized(precision: Precision, shape: tuple[int, ...], dtype: torch.dtype) -> QuantizedTensor:
    """Make a weight [..., outputs, inputs] without memory."""
    return QuantizedTensor.empty(torch.Size(shape), precision, dtype, META)
