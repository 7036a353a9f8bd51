"""Arguments of the attention kernel that follow from parameters, tree KV and metadata."""

import math
from typing import Any

import torch
from torch import Tensor

from specdecode_kernels.metadata import AttentionMetadata, AttentionParams, TreeKV

LOG2_E = math.log2(math.e)


def feature_arguments(params: AttentionParams, dim: int) -> tuple[Any, ...]:
    """Return score_scale, softcap, window, chunk and sinks of the kernel: it computes in base 2."""
    scale, cap = params.scale_of(dim) * LOG2_E, params.logit_softcap
    sinks = None if params.sinks is None else params.sinks.contiguous()
    others = params.sliding_window, params.attention_chunk_size, sinks
    if cap is None:
        return scale, None, *others
    return 2.0 * scale / cap, cap * LOG2_E, *others


def tree_arguments(tree_kv: TreeKV | None) -> tuple[Any, ...]:
    """Return tree_kv, tree_rows, stride_mask and stride_mask_query of the kernel."""
    if tree_kv is None:
        return None, 0, 0, 0
    k, v, mask = tree_kv
    mask = mask.view(torch.uint8)
    stride, stride_query, stride_row = mask.stride()
    tensors = (k, *k.stride()), (v, *v.stride()), (mask, stride_row)
    return tensors, k.shape[1], stride, stride_query


def starts_or_none(metadata: AttentionMetadata) -> Tensor | None:
    """Where requests begin: None where all have the same number of rows, unless it was made.

    Prompt chunks always have it. So a chunk alone takes the kernel of one among other requests.
    """
    if metadata.cu_seqlens_q is None and metadata.uniform_qo_len is not None:
        return None
    return starts_of(metadata)


def starts_of(metadata: AttentionMetadata) -> Tensor:
    """Answer where the rows of every request begin; a copy to the device if nobody made it.

    Raises:
        RuntimeError: nobody made it and a CUDA graph is being captured, which cannot hold the copy.
    """
    if metadata.cu_seqlens_q is not None:
        return metadata.cu_seqlens_q
    if metadata.page_table.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "attend: requests differ in query rows within a CUDA graph; give the metadata "
            "cu_seqlens_q, made before the capture"
        )
    lens = torch.tensor((0, *metadata.qo_lens), device=metadata.page_table.device)
    return lens.cumsum(0)
