"""One object with every op; an engine is built with one and calls its functions directly.

A step looks nothing up: no environment, no dispatch by tensor, no check of arguments. Shapes follow
from checkpoints and records that were checked when they were made; `testing.checked` adds a check
to every function of a backend.

On a CPU a float32 row comes out the same to the last bit whatever rows it is computed with: text
must not depend on the batch, on how a prompt is cut or on how many tokens are drafted.
Letters: B batch, C candidates, N nodes, root included, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from specdecode_kernels.layer_parts import FusedLayer, FusibleLayer
from specdecode_kernels.low_rank import LowRankFactors, LowRankMaps, LowRankRows, PackedLowRank
from specdecode_kernels.metadata import (
    DEFAULT_ATTENTION,
    AttentionMetadata,
    AttentionParams,
    DraftedNodes,
    LayerKV,
    PenaltyParamsBatch,
    RowIndices,
    RowSpec,
    SamplingParamsBatch,
    TreeKV,
)
from specdecode_kernels.mixture import (
    ExpertRouting,
    ExpertWeights,
    GatedActivation,
    RoutingConfig,
)
from specdecode_kernels.packed_weights import PackedWeight, SumOrder
from specdecode_kernels.recurrent import DeltaParams, DeltaRows, DeltaState
from specdecode_kernels.row_paths import RowPaths
from specdecode_kernels.torch.attention import attend, attend_with_lse, merge_states
from specdecode_kernels.torch.elementwise import (
    add_rms_norm,
    apply_rope,
    gelu_tanh_and_mul,
    rms_norm,
    silu_and_mul,
    softcap,
)
from specdecode_kernels.torch.experts import experts
from specdecode_kernels.torch.gated_delta import gated_delta, keep_drafted
from specdecode_kernels.torch.kv_cache import (
    compact_kv,
    lay_out_rows,
    load_kv,
    rope_then_store,
    store_kv,
)
from specdecode_kernels.torch.linear import linear, map_heads
from specdecode_kernels.torch.low_rank import add_low_rank
from specdecode_kernels.torch.routing import route_experts
from specdecode_kernels.torch.sampling import apply_penalties, perturb_logits, sample
from specdecode_kernels.torch.trees import (
    append_tokens,
    build_tree_mask,
    gather_accepted,
    select_tree_nodes,
    verify_chain,
    verify_tree,
)

META = torch.device("meta")
OpCall = tuple[str, Callable[[], object]]
"""What an engine needs a call for, and the call of an op on tensors of `META`."""


class GraphSupport(NamedTuple):
    """Whether a CUDA graph may hold a backend's attention, and what limits it, if anything.

    Launches in a graph must be right for every length: they read lengths on the device.
    """

    is_possible: bool
    limitation: str | None = None


class Attend(Protocol):
    """The attention op; see `Backend.attend`."""

    def __call__(
        self,
        q: Tensor,
        kv: LayerKV,
        metadata: AttentionMetadata,
        tree_kv: TreeKV | None,
        params: AttentionParams = DEFAULT_ATTENTION,
        /,
    ) -> Tensor: ...


class AttendWithLse(Protocol):
    """The attention op that also returns log-sum-exps; see `Backend.attend_with_lse`."""

    def __call__(
        self,
        q: Tensor,
        kv: LayerKV,
        metadata: AttentionMetadata,
        tree_kv: TreeKV | None,
        params: AttentionParams = DEFAULT_ATTENTION,
        /,
    ) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Backend:
    """Every op. Functions take their arguments by place and trust them."""

    name: str
    """Implementation of all ops but attention: torch, triton or cpu."""

    attention: str
    """Implementation of the ops on cached keys and values: torch, triton, cpu or flashinfer."""

    graph_support: GraphSupport

    sum_order: SumOrder = "inputs"
    """In which order packed weights and rows of bfloat16 are multiplied by kernels in C."""

    linear: Callable[[Tensor, Any, Tensor | None], Tensor]
    """Map x [rows, inputs] by weight [outputs, inputs] and bias [outputs]: [rows, outputs].

    The weight is a tensor, a quantized one, or what `pack_weight` of this backend returned.
    """

    map_heads: Callable[[Tensor, Any], Tensor]
    """Map x [rows, heads, inputs] by weight [heads, outputs, inputs]: [rows, heads, outputs].

    The weight is a tensor, or what `pack_weight` of this backend returned for it.
    """

    pack_weight: Callable[..., PackedWeight] | None
    """(weight, release=False): reorder a weight [outputs, inputs] for `linear`, or those of all
    experts or heads [n, outputs, inputs] for `experts` and `map_heads`; None where these take
    weights as they are. With `release`, the memory of a plain weight is given back meanwhile, and
    the weight lost."""

    add_low_rank: Callable[[Tensor, Tensor, LowRankMaps, LowRankRows], Tensor]
    """(out, x, maps, rows): add the low-rank maps of rows, for x [rows, inputs], to the outputs of
    a linear map [rows, outputs], in place.

    Both products are in float32 (float64 for such rows), and the sum with out is rounded once.
    Maps are `LowRankFactors`, or what `pack_low_rank` of this backend returned.
    """

    pack_low_rank: Callable[[LowRankFactors], PackedLowRank] | None
    """Reorder factors for `add_low_rank`; None where that takes them as they are."""

    route_experts: Callable[[Tensor, RoutingConfig, Tensor | None], ExpertRouting]
    """(logits, config, correction_bias): the experts of every row of logits [rows, experts], and
    their factors, in float32. The bias [experts] f32 is added to scores of all experts for the
    choice alone (DeepSeek-V3). Among equals any is chosen."""

    experts: Callable[[Tensor, ExpertRouting, ExpertWeights, GatedActivation], Tensor]
    """(hidden, routing, weights, activation): the weighted sum of the experts of each row
    [rows, hidden].

    The sum over a row's experts is in the order of `routing.ids`, in float32 (float64 for such
    rows), and rounded once. Ids are in [0, experts) and need not differ within a row.
    """

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    """(x, weight, eps): scale rows of x [..., dim] to root mean square 1, then by weight [dim].

    The weight is of x's type or float32: Gemma's is 1 plus what is stored, which 16 bits cannot
    hold.
    """

    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    """(x, update, weight, eps): the sum of both [..., dim], and its norm as by `rms_norm`.

    The update may be in parts [parts, ..., dim]: they are added first, as by `add_parts`.
    """

    apply_rope: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    """(q, k, cos, sin): rotate q and k [rows, heads, dim] by angles [rows, dim / 2] of their rows.

    The first half of a head pairs with its second half, as in Hugging Face's Llama. A kernel writes
    over q and k, torch does not: use what is returned and nothing else.
    """

    silu_and_mul: Callable[[Tensor, Tensor], Tensor]
    """(gate, up): silu(gate) * up, both [..., dim]."""

    gelu_tanh_and_mul: Callable[[Tensor, Tensor], Tensor]
    """(gate, up): gelu(gate) * up, both [..., dim], by the approximation with tanh.

    gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))).
    Source: Hendrycks and Gimpel, "Gaussian error linear units", 2016.
    """

    softcap: Callable[[Tensor, float], Tensor]
    """(x, cap): cap * tanh(x / cap) of logits x [rows, dim] f32 or f64."""

    store_kv: Callable[[LayerKV, Tensor, Tensor, Tensor], None]
    """(kv, slot_mapping, k, v): write k and v [n, kv_heads, dim] to rows slot_mapping [n] i64.

    Head sizes are those of the cache, which may differ between k and v.

    They are cast to the cache's type; float8 rows hold them divided by the scale. Which of two
    writes to one row wins is left open.
    """

    rope_and_store_kv: Callable[
        [LayerKV, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]
    ]
    """(kv, slot_mapping, q, k, v, cos, sin): q and k as by `apply_rope`; k and v are stored as by
    `store_kv`, with the bits of both ops one after the other."""

    load_kv: Callable[[LayerKV, Tensor, torch.dtype], tuple[Tensor, Tensor]]
    """(kv, slot_mapping, dtype): k and v [n, kv_heads, dim] of rows, as attention reads them."""

    attend: Attend
    """Attend from q [rows, q_heads, k_dim] to what the metadata and the tree KV show.

    Returns [rows, q_heads, v_dim]. The cache is of q's type or float8. Prefix and tree share one
    softmax. Rows that no query row of their request sees may hold anything, NaN included; so may
    those before the windows or chunks of all of them, whose pages need not exist.
    """

    attend_with_lse: AttendWithLse
    """As `attend`, and the natural log-sum-exp of each row's scores [rows, q_heads].

    It is f32, f64 for such queries; -inf where a row sees nothing. It contains the head's sink: of
    parts that are to be merged, give sinks to one.
    """

    merge_states: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    """(out_a, lse_a, out_b, lse_b): merge attentions of the same queries over different rows.

    Outs are [rows, q_heads, dim], lses [rows, q_heads]; so is the result. A state with an lse of
    -inf adds nothing, whatever its out holds.
    """

    lay_out_rows: Callable[[RowSpec], RowIndices]
    """Where rows lie that a `RowSpec` describes, and the page tables of their requests."""

    compact_kv: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int], None]
    """(k, v, page_table, req_indices, lengths, path, page_size): move the accepted path's rows of
    every layer to where a chain would have written them, in place.

    Node j of request b lies at position lengths[b] + j; step i of the path goes to lengths[b] + i.
    All of a request's rows are read before any is written. Requests share no rows. k and v are
    [layers, pool_rows, kv_heads, dim], contiguous, of head sizes that may differ; page_table
    [requests, pages] i64; req_indices and lengths [B] i64; path [B, W] i64.
    """

    gated_delta: Callable[[Tensor, Tensor, DeltaParams, DeltaState, int, DeltaRows], Tensor]
    """(u, gates, params, state, layer, rows): a recurrent layer, see `recurrent`.

    U [rows, channels] are the inputs of the convolution, gates [rows, gates] those of every head
    (beta and g of the gated delta rule, none of a convolution), both of any row stride. Returns y
    [rows, v_heads, v_dim] of u's type. States of kept rows are written, and the inputs of drafted
    ones stored. Requests without rows are left alone.
    """

    keep_drafted: Callable[[DeltaParams, DeltaState, Tensor, Tensor | None, Tensor], None]
    """(params, state, slots, path, accepted): fold the accepted nodes of every request, as stored
    by the latest `gated_delta`, into the states of all layers.

    Slots [B] i64; path [B, W] i64, nodes from the root on, None for chains; accepted [B] i64,
    drafted nodes on the path that were accepted.
    """

    gather_accepted: Callable[[Tensor, Tensor], Tensor]
    """(values, path): keep the rows of path [B, W] i64: [B, N, ...] to [B, W, ...]."""

    select_tree_nodes: Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]
    """(scores, tokens, parents, count): keep the best candidates of each tree, the best first.

    Scores [B, C] f32, not NaN; tokens [B, C] i64; parents [B, C] i64, candidate indices, -1 for
    the root. Among equals the lower index is first. A candidate must stand after its parent and
    not score above it; then any number of first nodes contain their ancestors. Returns tokens [B,
    count]
    i64, and the parents [B, count + 1] i64 of the nodes, root first, which is its own parent.
    """

    build_tree_mask: Callable[[Tensor, int], tuple[Tensor, Tensor]]
    """(parents, max_depth): depths [B, N] i64 and tree mask [B, N, N] bool of parents [B, N] i64.

    Row j of the mask marks node j and its ancestors. The root comes first and is its own parent;
    no node is deeper than max_depth.
    """

    verify_chain: Callable[[Tensor, Tensor], Tensor]
    """(choices, drafted): count the drafted tokens before the first that the target did not choose.

    Choices [B, N] i64 are the target's at every node, drafted is [B, N - 1] i64. Returns the counts
    [B] i64.
    """

    verify_tree: Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]]
    """(choices, drafted, parents, path_length): follow the target's choices from the root down.

    Siblings carry different tokens, so at most one child of a node agrees and the agreeing nodes
    form one path. Parents [B, N] i64 precede their children; path_length counts the nodes of the
    longest path, root included. Returns nodes [B, path_length] i64, root first, filled up with the
    path's last node; how many drafted tokens are among them [B] i64; the bonus token [B] i64.
    """

    append_tokens: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], None]
    """(sequences, lengths, req_indices, starts, offsets, tokens, accepted): write the tokens of a
    step to their sequences, and count those that are accepted and the bonus token, in place.

    Token j of request b goes to position starts[b] + offsets[j]; lengths[r] grows by accepted[b] +
    1. A request is in the batch once. Sequences [requests, width] i64; lengths [requests] i64;
    tokens [B, W] i64; offsets [W] i64; req_indices, starts and accepted [B] i64; all contiguous but
    tokens.
    """

    apply_penalties: Callable[[Tensor, PenaltyParamsBatch, DraftedNodes | None], Tensor]
    """Apply penalties and bias to logits [B, N, V] float; a new tensor of the same shape.

    A node counts the drafted tokens on the path to it, its own included, as if they were output.
    Source: the penalties of the OpenAI API, and for repetition Keskar et al., "CTRL", 2019.
    """

    sample: Callable[[Tensor, SamplingParamsBatch | None, Tensor, Tensor | None], Tensor]
    """(logits, params, positions, ids): the token of every node [B, N] i64, a place among V.

    It is the likeliest, or where a request samples, the likeliest after temperature, filters and
    the noise of (seed, position, token); among equals the lowest index. Logits are [B, N, V] float;
    params None where no request samples; positions [B, N] i64, absolute, of the tokens to be
    sampled; ids [V] i64, the tokens that logits belong to, where indices are not ids.
    Source: Daliri, Musco, Suresh, "Coupling without communication and drafter-invariant
    speculative decoding", 2024.
    """

    perturb_logits: Callable[[Tensor, SamplingParamsBatch, Tensor, Tensor | None, Tensor], Tensor]
    """(logits, params, positions, ids, requests): what `sample` takes the likeliest of, for
    requests [R] i64 that sample: [R, N, V]. Ids may be [B, N, V] too, of each row."""

    row_paths: RowPaths | None = None
    """Chooses instructions for rows of `linear`, where their number may change bits; shared by all
    that this backend computes."""

    fuse_layer: Callable[[FusibleLayer], FusedLayer | None] | None = None
    """Return what computes a layer in one call, to the same bits as the ops, or None for parts that
    it does not take."""


TORCH = Backend(
    name="torch",
    attention="torch",
    graph_support=GraphSupport(
        True, "torch would gather page tables at full width in every replay"
    ),
    linear=linear,
    map_heads=map_heads,
    pack_weight=None,
    add_low_rank=add_low_rank,
    pack_low_rank=None,
    route_experts=route_experts,
    experts=experts,
    rms_norm=rms_norm,
    add_rms_norm=add_rms_norm,
    apply_rope=apply_rope,
    silu_and_mul=silu_and_mul,
    gelu_tanh_and_mul=gelu_tanh_and_mul,
    softcap=softcap,
    store_kv=store_kv,
    rope_and_store_kv=rope_then_store(apply_rope, store_kv),
    load_kv=load_kv,
    attend=attend,
    attend_with_lse=attend_with_lse,
    merge_states=merge_states,
    lay_out_rows=lay_out_rows,
    compact_kv=compact_kv,
    gated_delta=gated_delta,
    keep_drafted=keep_drafted,
    gather_accepted=gather_accepted,
    select_tree_nodes=select_tree_nodes,
    build_tree_mask=build_tree_mask,
    verify_chain=verify_chain,
    verify_tree=verify_tree,
    append_tokens=append_tokens,
    apply_penalties=apply_penalties,
    sample=sample,
    perturb_logits=perturb_logits,
)
"""The reference: any device and type. Other backends replace functions of it."""
