"""A backend that checks the arguments of every call, for tests: shapes, types, strides.

Engines run unchecked backends: shapes follow from checkpoints and records that are checked when
they are loaded or made, and a check per op and layer would cost as much as the smallest launches.
Letters: B batch, N nodes, V vocabulary.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specdecode_kernels.backend import Backend
from specdecode_kernels.metadata import (
    DEFAULT_ATTENTION,
    FLOAT8,
    AttentionMetadata,
    AttentionParams,
    DraftedNodes,
    LayerKV,
    PenaltyParamsBatch,
    SamplingParamsBatch,
    TreeKV,
)
from specdecode_kernels.mixture import (
    ExpertRouting,
    ExpertWeights,
    GatedActivation,
    RoutingConfig,
)
from specdecode_kernels.packed_weights import AnyWeight
from specdecode_kernels.testing.checked_deltas import check_gated_delta, check_keep_drafted
from specdecode_kernels.testing.checked_low_rank import check_add_low_rank
from specdecode_kernels.testing.checked_trees import (
    check_build_tree_mask,
    check_compact_kv,
    check_gather_accepted,
    check_select_tree_nodes,
    check_verify_chain,
    check_verify_tree,
)


def checked(backend: Backend) -> Backend:
    """Make every op raise a ValueError that names what is wrong with its arguments.

    Layers are computed op by op then.
    """
    guarded: dict[str, Any] = {
        op: _guard(getattr(backend, op), check) for op, check in CHECKS.items()
    }
    return replace(backend, fuse_layer=None, **guarded)


def _guard(function: Callable[..., Any], check: Callable[..., None]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        check(*arguments)
        return function(*arguments)

    return call


def _check_linear(x: Tensor, weight: AnyWeight, bias: Tensor | None) -> None:
    if x.dim() != 2 or len(weight.shape) != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(
            f"linear: weight {list(weight.shape)} does not fit rows of {list(x.shape)}"
        )
    if not isinstance(weight, Tensor) and x.dtype != weight.dtype:
        raise ValueError(f"linear: a weight for rows of {weight.dtype} takes none of {x.dtype}")
    if bias is not None and bias.shape != (weight.shape[0],):
        raise ValueError(f"linear: bias {list(bias.shape)} must be [{weight.shape[0]}]")


def _check_map_heads(x: Tensor, weight: AnyWeight) -> None:
    if x.dim() != 3 or len(weight.shape) != 3 or x.shape[1:] != (weight.shape[0], weight.shape[2]):
        raise ValueError(
            f"map_heads: weight {list(weight.shape)} must be [heads, outputs, inputs] for rows "
            f"{list(x.shape)} [rows, heads, inputs]"
        )
    if x.dtype != weight.dtype:
        raise ValueError(f"map_heads: a weight for rows of {weight.dtype} takes none of {x.dtype}")


def _check_experts(
    hidden: Tensor, routing: ExpertRouting, weights: ExpertWeights, _: GatedActivation
) -> None:
    num_experts, width, inner = weights.down.shape
    if tuple(weights.gate_up.shape) != (num_experts, 2 * inner, width) or hidden.dim() != 2:
        raise ValueError(
            f"experts: gate_up {list(weights.gate_up.shape)} and down {list(weights.down.shape)} "
            "must be [experts, 2 * inner, hidden] and [experts, hidden, inner]"
        )
    for weight in (weights.gate_up, weights.down):
        if isinstance(weight, Tensor) and not weight.is_contiguous():
            raise ValueError(f"experts: a weight {list(weight.shape)} must be contiguous")
    if hidden.shape[1] != width or weights.gate_up.dtype != hidden.dtype:
        raise ValueError(
            f"experts: rows {list(hidden.shape)} {hidden.dtype} must be [rows, {width}] "
            f"{weights.gate_up.dtype}"
        )
    wanted = ((weights.gate_up_bias, 2 * inner), (weights.down_bias, width))
    for bias, size in wanted:
        if bias is not None and (bias.shape != (num_experts, size) or not bias.is_contiguous()):
            raise ValueError(
                f"experts: a bias {list(bias.shape)} must be [{num_experts}, {size}], contiguous"
            )
    ids, factors = routing
    if ids.dim() != 2 or len(ids) != len(hidden) or ids.shape != factors.shape:
        raise ValueError(
            f"experts: ids {list(ids.shape)} and weights {list(factors.shape)} must both be "
            f"[{len(hidden)}, top_k]"
        )
    if ids.dtype != torch.int32 or factors.dtype != torch.float32:
        raise ValueError(
            f"experts: ids {ids.dtype} and weights {factors.dtype} must be i32 and f32"
        )


def _check_route_experts(
    logits: Tensor, config: RoutingConfig, correction_bias: Tensor | None
) -> None:
    if logits.dim() != 2 or not logits.is_floating_point():
        raise ValueError(
            f"route_experts: logits {list(logits.shape)} {logits.dtype} must be [rows, experts] "
            "float"
        )
    experts = logits.shape[1]
    if not 1 <= config.top_k <= experts or experts % config.num_groups:
        raise ValueError(
            f"route_experts: {experts} experts have neither {config.num_groups} equal groups nor "
            f"the {config.top_k} best"
        )
    if correction_bias is not None and correction_bias.shape != (experts,):
        raise ValueError(
            f"route_experts: a correction bias {list(correction_bias.shape)} must be [{experts}]"
        )


def _check_rms_norm(x: Tensor, weight: Tensor, eps: float) -> None:
    if weight.dim() != 1 or x.shape[-1:] != weight.shape:
        raise ValueError(
            f"rms_norm: weight {list(weight.shape)} does not fit rows of {list(x.shape)}"
        )
    if weight.dtype not in (x.dtype, torch.float32):
        raise ValueError(
            f"rms_norm: weight {weight.dtype} must be {torch.float32} or as rows, {x.dtype}"
        )


def _check_add_rms_norm(x: Tensor, update: Tensor, weight: Tensor, eps: float) -> None:
    has_parts = update.dim() == x.dim() + 1 and len(update) > 1
    if update.shape[has_parts:] != x.shape or update.dtype != x.dtype:
        raise ValueError(
            f"add_rms_norm: x {list(x.shape)} {x.dtype} and update {list(update.shape)} "
            f"{update.dtype} must have one type, and one shape but for parts of the update"
        )
    _check_rms_norm(x, weight, eps)


def _check_apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    rows, dim = q.shape[0], q.shape[-1]
    if q.dim() != 3 or k.dim() != 3 or k.shape[0] != rows or k.shape[-1] != dim:
        raise ValueError(
            f"apply_rope: q {list(q.shape)} and k {list(k.shape)} must both be [rows, heads, dim]"
        )
    if dim % 2 or cos.shape != (rows, dim // 2) or sin.shape != cos.shape:
        raise ValueError(
            f"apply_rope: cos {list(cos.shape)} and sin {list(sin.shape)} must be "
            f"[{rows}, {dim}/2], with an even head dimension"
        )


def _check_gate(op: str, gate: Tensor, up: Tensor) -> None:
    if gate.shape != up.shape:
        raise ValueError(
            f"{op}: gate {list(gate.shape)} and up {list(up.shape)} must have one shape"
        )


def _check_softcap(x: Tensor, cap: float) -> None:
    if x.dim() != 2 or x.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"softcap: logits {list(x.shape)} {x.dtype} must be [rows, dim] f32 or f64"
        )
    if not 0 < cap < math.inf:
        raise ValueError(f"softcap: cap {cap} must be positive and finite")


def _check_store_kv(kv: LayerKV, slot_mapping: Tensor, k: Tensor, v: Tensor) -> None:
    wanted_k, wanted_v = ((*slot_mapping.shape, *pool.shape[1:]) for pool in (kv.k, kv.v))
    if slot_mapping.dim() != 1 or k.shape != wanted_k or v.shape != wanted_v:
        raise ValueError(
            f"store_kv: k {list(k.shape)} must be {list(wanted_k)} and v {list(v.shape)} "
            f"{list(wanted_v)}, one row for each of slot_mapping {list(slot_mapping.shape)}"
        )


def _check_rope_and_store_kv(
    kv: LayerKV, slot_mapping: Tensor, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor
) -> None:
    _check_apply_rope(q, k, cos, sin)
    _check_store_kv(kv, slot_mapping, k, v)


def _check_attend(
    q: Tensor,
    kv: LayerKV,
    metadata: AttentionMetadata,
    tree_kv: TreeKV | None,
    params: AttentionParams = DEFAULT_ATTENTION,
) -> None:
    kv_heads, dim = kv.k.shape[1:]
    rows = metadata.kv_lens.shape[0]
    if q.dim() != 3 or q.shape[0] != rows or q.shape[2] != dim:
        raise ValueError(f"attend: q {list(q.shape)} must be [{rows}, q_heads, {dim}]")
    if q.shape[1] % kv_heads:
        raise ValueError(f"attend: {q.shape[1]} query heads cannot share {kv_heads} kv heads")
    if kv.k.dtype not in (q.dtype, FLOAT8):
        raise ValueError(f"attend: a cache of {kv.k.dtype} must be of q's {q.dtype} or {FLOAT8}")
    if kv.k.shape[0] % metadata.page_size:
        raise ValueError(
            f"attend: {kv.k.shape[0]} cache rows are not a multiple of the page size, "
            f"{metadata.page_size}"
        )
    if params.sinks is not None and params.sinks.shape != q.shape[1:2]:
        raise ValueError(
            f"attend: sinks {list(params.sinks.shape)} must be one for each of "
            f"{q.shape[1]} query heads"
        )
    if tree_kv is not None:
        _check_tree_kv(tree_kv)
        _check_tree_kv_fits(tree_kv, metadata, q.dtype, kv)


def _check_tree_kv(tree_kv: TreeKV) -> None:
    k, v, mask = tree_kv
    if k.dim() != 4 or v.dim() != 4 or v.shape[:3] != k.shape[:3]:
        raise ValueError(
            f"tree KV: k and v must both be [batch, tree_rows, kv_heads, dim], equal but for dim, "
            f"not {list(k.shape)} and {list(v.shape)}"
        )
    batch, tree_rows = k.shape[:2]
    fits = mask.dim() == 3 and mask.shape[::2] == (batch, tree_rows)
    if not fits or mask.dtype != torch.bool:
        raise ValueError(
            f"tree KV: tree_mask must be [{batch}, queries, {tree_rows}] bool, "
            f"not {list(mask.shape)} {mask.dtype}"
        )


def _check_tree_kv_fits(
    tree_kv: TreeKV, metadata: AttentionMetadata, dtype: torch.dtype, kv: LayerKV
) -> None:
    queries = max(metadata.qo_lens, default=0)
    batch = len(metadata.qo_lens)
    for name, rows, pool in (("k", tree_kv.k, kv.k), ("v", tree_kv.v, kv.v)):
        kv_heads, dim = pool.shape[1:]
        if (rows.shape[0], *rows.shape[2:]) != (batch, kv_heads, dim):
            raise ValueError(
                f"attend: tree KV's {name} {list(rows.shape)} must be "
                f"[{batch}, rows, {kv_heads}, {dim}]"
            )
        if rows.dtype != dtype:
            raise ValueError(f"attend: tree KV of {rows.dtype} must be of q's {dtype}")
    if tree_kv.tree_mask.shape[1] < queries:
        raise ValueError(
            f"attend: tree_mask {list(tree_kv.tree_mask.shape)} must have at least {queries} rows "
            "per request"
        )


def _check_merge_states(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> None:
    fits = out_a.dim() == 3 and out_b.shape == out_a.shape and out_b.dtype == out_a.dtype
    if not fits or not lse_a.shape == lse_b.shape == out_a.shape[:2]:
        raise ValueError(
            f"merge_states: outs {list(out_a.shape)} {out_a.dtype} and {list(out_b.shape)} "
            f"{out_b.dtype} must both be [rows, heads, dim], and lses {list(lse_a.shape)} and "
            f"{list(lse_b.shape)} [rows, heads]"
        )


def _check_apply_penalties(
    logits: Tensor, params: PenaltyParamsBatch, drafted: DraftedNodes | None
) -> None:
    batch, nodes, vocab = _shape_of("apply_penalties", logits)
    tables = (params.counts, params.in_prompt, params.bias)
    if any(table.shape != (len(params.counts), vocab) for table in tables):
        raise ValueError(
            f"apply_penalties: counts {list(params.counts.shape)}, in_prompt "
            f"{list(params.in_prompt.shape)} and bias {list(params.bias.shape)} must all be "
            f"[states, {vocab}]"
        )
    if not all(table.is_contiguous() for table in (*tables, params.states, params.numbers)):
        raise ValueError("apply_penalties: every tensor of params must be contiguous")
    if params.states.shape != (batch,) or params.numbers.shape != (batch, 3):
        raise ValueError(
            f"apply_penalties: states {list(params.states.shape)} must be [{batch}] and numbers "
            f"{list(params.numbers.shape)} [{batch}, 3]"
        )
    if drafted is not None:
        _check_drafted(drafted, batch, nodes)


def _check_drafted(drafted: DraftedNodes, batch: int, nodes: int) -> None:
    if drafted.tokens.shape != (batch, nodes - 1):
        raise ValueError(
            f"apply_penalties: drafted tokens {list(drafted.tokens.shape)} must be "
            f"[{batch}, {nodes - 1}]"
        )
    if drafted.parents is not None and drafted.parents.shape != (batch, nodes):
        raise ValueError(
            f"apply_penalties: parents {list(drafted.parents.shape)} must be [{batch}, {nodes}]"
        )


def _check_sample(
    logits: Tensor, params: SamplingParamsBatch | None, positions: Tensor, ids: Tensor | None
) -> None:
    batch, nodes, vocab = _shape_of("sample", logits)
    if positions.shape != (batch, nodes):
        raise ValueError(
            f"sample: positions {list(positions.shape)} must be [{batch}, {nodes}], as are logits"
        )
    if params is not None and any(number.shape != (batch,) for number in params.tensors()):
        raise ValueError(f"sample: every sampling parameter must be [{batch}], one per request")
    if not vocab or (ids is not None and ids.shape != (vocab,)):
        raise ValueError(f"sample: a vocabulary of {vocab} tokens needs as many ids, and one token")


def _shape_of(op: str, logits: Tensor) -> tuple[int, int, int]:
    if logits.dim() != 3 or not logits.is_floating_point():
        raise ValueError(
            f"{op}: logits {list(logits.shape)} {logits.dtype} must be [batch, nodes, vocab] float"
        )
    batch, nodes, vocab = logits.shape
    return batch, nodes, vocab


CHECKS: dict[str, Callable[..., None]] = {
    "linear": _check_linear,
    "map_heads": _check_map_heads,
    "add_low_rank": check_add_low_rank,
    "route_experts": _check_route_experts,
    "experts": _check_experts,
    "rms_norm": _check_rms_norm,
    "add_rms_norm": _check_add_rms_norm,
    "apply_rope": _check_apply_rope,
    "silu_and_mul": partial(_check_gate, "silu_and_mul"),
    "gelu_tanh_and_mul": partial(_check_gate, "gelu_tanh_and_mul"),
    "softcap": _check_softcap,
    "store_kv": _check_store_kv,
    "rope_and_store_kv": _check_rope_and_store_kv,
    "attend": _check_attend,
    "attend_with_lse": _check_attend,
    "merge_states": _check_merge_states,
    "gather_accepted": check_gather_accepted,
    "compact_kv": check_compact_kv,
    "gated_delta": check_gated_delta,
    "keep_drafted": check_keep_drafted,
    "select_tree_nodes": check_select_tree_nodes,
    "build_tree_mask": check_build_tree_mask,
    "verify_chain": check_verify_chain,
    "verify_tree": check_verify_tree,
    "apply_penalties": _check_apply_penalties,
    "sample": _check_sample,
}
