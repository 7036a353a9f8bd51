"""Decode attention over latents (multi-head latent attention) against the memory's rate."""

from collections.abc import Iterator

import torch

from bench.gpu.context import Context
from bench.gpu.record import Row
from bench.gpu.sections.attention import MOST_TOKENS
from bench.gpu.targets import ATTENTION_SHARE, LARGE_KV_BYTES
from specdecode_kernels import AttentionMetadata, CausalBounds, LayerKV, choose_backend

HEADS, DIM, V_DIM, PAGE = 128, 576, 512, 16
"""Of DeepSeek-V3: one head of keys, whose first entries are the values."""
QUERIES = (1, 4)


def measure(context: Context) -> Iterator[Row]:
    """Time decodes and verifies of four rows, the large ones first."""
    backend = choose_backend(
        "triton", context.device, torch.bfloat16, DIM, v_head_dim=V_DIM, is_latent=True
    ).backend
    scale = context.scale
    for length in sorted(scale.attention_contexts, reverse=True):
        for batch in sorted(scale.attention_batches, reverse=True):
            if batch * length > MOST_TOKENS:
                continue
            for queries in QUERIES:
                if not context.has_time(2):
                    return
                q, kv, metadata = draw(batch, length, queries, context.device)
                took_us = context.time_us(lambda: backend.attend(q, kv, metadata, None))  # noqa: B023
                kv_bytes = batch * length * DIM * torch.bfloat16.itemsize
                floor_us = 1e6 * kv_bytes / context.floors.memory_bytes_per_s
                target = ATTENTION_SHARE if kv_bytes >= LARGE_KV_BYTES and queries == 1 else None
                name = f"latents, {queries} rows, batch {batch}, context {length}"
                yield Row.of_time(name, took_us, "µs", floor_us, target)


def draw(
    batch: int, length: int, queries: int, device: torch.device
) -> tuple[torch.Tensor, LayerKV, AttentionMetadata]:
    """Draw queries and cached latents, whose pages lie shuffled."""
    pages = -(-length // PAGE)
    ids = 1 + torch.randperm(batch * pages, device=device)
    kv_lens = torch.arange(length - queries + 1, length + 1, device=device)
    metadata = AttentionMetadata(
        page_table=ids.view(batch, pages),
        page_size=PAGE,
        qo_lens=(queries,) * batch,
        kv_lens=kv_lens.repeat(batch),
        max_kv_len=length,
        cu_seqlens_q=torch.arange(batch + 1, device=device) * queries,
        causal_bounds=CausalBounds((length,) * batch),
    )
    rows = (1 + batch * pages) * PAGE
    k = torch.randn(rows, 1, DIM, device=device, dtype=torch.bfloat16)
    q = torch.randn(batch * queries, HEADS, DIM, device=device, dtype=torch.bfloat16)
    return q, LayerKV(k, k[..., :V_DIM], is_latent=True), metadata
