"""Backends that launch our Triton kernels, on a GPU or, interpreted, on a CPU."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from specdecode_kernels.backend import Backend, GraphSupport
from specdecode_kernels.metadata import (
    DEFAULT_ATTENTION,
    FLOAT8,
    AttentionMetadata,
    AttentionParams,
    LayerKV,
    TreeKV,
)
from specdecode_kernels.row_paths import RowPaths
from specdecode_kernels.torch.kv_cache import rope_then_store
from specdecode_kernels.triton.apply_penalties import apply_penalties
from specdecode_kernels.triton.apply_rope import apply_rope
from specdecode_kernels.triton.attend import attend
from specdecode_kernels.triton.build_tree_mask import build_tree_mask
from specdecode_kernels.triton.compact_kv import compact_kv
from specdecode_kernels.triton.experts import experts
from specdecode_kernels.triton.float8 import float8_is_native
from specdecode_kernels.triton.gated_delta import gated_delta
from specdecode_kernels.triton.gather_accepted import gather_accepted
from specdecode_kernels.triton.gelu_tanh_and_mul import gelu_tanh_and_mul
from specdecode_kernels.triton.keep_drafted import keep_drafted
from specdecode_kernels.triton.linear import linear
from specdecode_kernels.triton.merge_states import merge_splits, merge_states
from specdecode_kernels.triton.rms_norm import add_rms_norm, rms_norm
from specdecode_kernels.triton.rope_and_store_kv import rope_and_store_kv
from specdecode_kernels.triton.route_experts import route_experts
from specdecode_kernels.triton.sample import sample
from specdecode_kernels.triton.select_tree_nodes import select_tree_nodes
from specdecode_kernels.triton.silu_and_mul import silu_and_mul
from specdecode_kernels.triton.softcap import softcap
from specdecode_kernels.triton.store_kv import store_kv
from specdecode_kernels.triton.tiles import MAX_PAIRS, MIN_DOT, Tile, choose_splits, choose_tile
from specdecode_kernels.triton.verify_chain import verify_chain
from specdecode_kernels.triton.verify_tree import verify_tree

WORKSPACE_BYTES = 64 << 20


def with_triton_ops(backend: Backend) -> Backend:
    """Replace all ops but attention; logits must be float32."""
    paths = RowPaths()
    return replace(
        backend,
        name="triton",
        linear=partial(linear, paths),
        row_paths=paths,
        route_experts=route_experts,
        experts=experts,
        rms_norm=rms_norm,
        add_rms_norm=add_rms_norm,
        apply_rope=apply_rope,
        rope_and_store_kv=rope_then_store(apply_rope, backend.store_kv),
        silu_and_mul=silu_and_mul,
        gelu_tanh_and_mul=gelu_tanh_and_mul,
        softcap=softcap,
        compact_kv=compact_kv,
        gated_delta=gated_delta,
        keep_drafted=keep_drafted,
        gather_accepted=gather_accepted,
        select_tree_nodes=select_tree_nodes,
        build_tree_mask=build_tree_mask,
        verify_chain=verify_chain,
        verify_tree=verify_tree,
        apply_penalties=apply_penalties,
        sample=sample,
    )


def with_triton_attention(
    backend: Backend,
    device: torch.device,
    *,
    splits: int | None = None,
    workspace_bytes: int = WORKSPACE_BYTES,
    converts_float8: bool | None = None,
) -> Backend:
    """Replace the ops on cached keys and values; see `TritonAttention`."""
    attention = TritonAttention(device, splits, workspace_bytes, converts_float8)
    return replace(
        backend,
        attention="triton",
        graph_support=GraphSupport(True),
        store_kv=store_kv,
        rope_and_store_kv=rope_and_store_kv
        if backend.apply_rope is apply_rope
        else rope_then_store(backend.apply_rope, store_kv),
        attend=attention.attend,
        attend_with_lse=attention.attend_with_lse,
        merge_states=merge_states,
    )


class TritonAttention:
    """Attention in one launch, or in splits that a second launch merges.

    The workspace of splits never grows or moves, so CUDA graphs may hold it. Whoever shares one
    runs on one stream: two launches at once would write one workspace.
    """

    def __init__(
        self,
        device: torch.device,
        splits: int | None = None,
        workspace_bytes: int = WORKSPACE_BYTES,
        converts_float8: bool | None = None,
    ) -> None:
        """Allocate the workspace.

        `splits` fixes what is otherwise chosen by shapes, `converts_float8` what the device decides
        otherwise: whether kernels use its own conversion.
        """
        self._splits = splits
        self._processors = _processors(device)
        self._converts_float8 = float8_is_native(device)
        if converts_float8 is not None:
            self._converts_float8 = converts_float8
        self._workspace = torch.empty(workspace_bytes // 4, dtype=torch.float32, device=device)

    def attend(
        self,
        q: Tensor,
        kv: LayerKV,
        metadata: AttentionMetadata,
        tree_kv: TreeKV | None,
        params: AttentionParams = DEFAULT_ATTENTION,
    ) -> Tensor:
        out = torch.empty(*q.shape[:2], kv.v.shape[2], dtype=q.dtype, device=q.device)
        self._attend(q, kv, metadata, tree_kv, params, out, None)
        return out

    def attend_with_lse(
        self,
        q: Tensor,
        kv: LayerKV,
        metadata: AttentionMetadata,
        tree_kv: TreeKV | None,
        params: AttentionParams = DEFAULT_ATTENTION,
    ) -> tuple[Tensor, Tensor]:
        out = torch.empty(*q.shape[:2], kv.v.shape[2], dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        self._attend(q, kv, metadata, tree_kv, params, out, lse)
        return out, lse

    def _attend(
        self,
        q: Tensor,
        kv: LayerKV,
        metadata: AttentionMetadata,
        tree_kv: TreeKV | None,
        params: AttentionParams,
        out: Tensor,
        lse: Tensor | None,
    ) -> None:
        if not q.shape[0]:
            return
        rows, q_heads, v_dim = out.shape
        kv_heads, dim = kv.k.shape[1], v_dim if kv.is_latent else max(q.shape[2], v_dim)
        pairs = max(metadata.qo_lens) * (q_heads // kv_heads)
        tile = tile_for(
            params,
            pairs,
            dim,
            q.element_size(),
            page_size=metadata.page_size,
            is_float8=kv.k.dtype == FLOAT8,
            is_tree=tree_kv is not None,
        )
        splits = self._split(out, kv_heads, metadata, pairs, params.reach)
        if splits == 1:
            whole = None if lse is None else lse[None]
            attend(q, kv, metadata, tree_kv, params, tile, out[None], whole, self._converts_float8)
            return
        part_floats = splits * rows * q_heads * v_dim
        parts = self._workspace[:part_floats].view(splits, rows, q_heads, v_dim)
        lses = self._workspace[part_floats:][: splits * rows * q_heads].view(splits, rows, q_heads)
        attend(q, kv, metadata, tree_kv, params, tile, parts, lses, self._converts_float8)
        merge_splits(parts, lses, out, lse)

    def _split(
        self,
        out: Tensor,
        kv_heads: int,
        metadata: AttentionMetadata,
        pairs: int,
        reach: int | None,
    ) -> int:
        wanted = self._splits
        if wanted is None:
            requests_and_heads = len(metadata.qo_lens) * kv_heads
            longest = metadata.max_kv_len
            if reach is not None:  # of a chunk's rows together
                longest = min(longest, reach + max(metadata.qo_lens))
            wanted = choose_splits(requests_and_heads, pairs, longest, self._processors)
        rows, q_heads, dim = out.shape
        return max(1, min(wanted, self._workspace.numel() // (rows * q_heads * (dim + 1))))


def tile_for(
    params: AttentionParams,
    pairs: int,
    dim: int,
    itemsize: int,
    *,
    page_size: int,
    is_float8: bool,
    is_tree: bool,
) -> Tile:
    """Choose a tile as `choose_tile`, of fewer pairs where features of a layer take registers.

    Under the masks of a tree and of a window or chunk it holds 16 pairs. With a softcap it holds
    64, in eight warps; so it does with a window or chunk, of heads of more than 64. Over pages of
    one token 16 pairs would take 136 registers, so that a processor held three programs, not four:
    with at most 128 they take 0.82 to 0.84 of the time at 64 requests on an H100.
    """
    is_masked = params.reach is not None
    is_halved = params.logit_softcap is not None or (is_masked and dim > 64)
    if is_tree and is_masked:
        pairs = min(pairs, MIN_DOT)
    elif is_halved:
        pairs = min(pairs, MAX_PAIRS // 2)
    tile = choose_tile(pairs, dim, itemsize, is_float8=is_float8, is_tree=is_tree)
    if page_size == 1 and (tile.pairs, tile.dim, itemsize) == (16, 128, 2) and not is_float8:
        tile = replace(tile, most_registers=128)
    return replace(tile, warps=8) if is_halved and tile.pairs == MAX_PAIRS // 2 else tile


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
