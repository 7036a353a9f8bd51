"""Rows of token ids: documents packed end to end, every row opening at a document's start."""

import math
import time
from collections.abc import Callable, Iterator

import torch
from tokenizers import Tokenizer
from tqdm import tqdm


def pack(
    texts: Iterator[str], tokenizer: Tokenizer, rows: int, row_tokens: int
) -> Iterator[torch.Tensor]:
    """Yield batches of ids, [rows, row_tokens] int64; what overhangs a row is cut off."""
    while True:
        batch = []
        for _ in range(rows):
            row: list[int] = []
            while len(row) < row_tokens:
                row += tokenizer.encode(next(texts), add_special_tokens=False).ids
            batch.append(row[:row_tokens])
        yield torch.tensor(batch)


def descend(
    caption: str,
    parameters: list[torch.nn.Parameter],
    losses: Callable[[int], torch.Tensor],
    steps: int,
    peak_rate: float,
) -> float:
    """Run AdamW over `losses(step)` with warm-up and a cosine to zero; return the seconds taken."""
    matrices = [p for p in parameters if p.ndim > 1]
    vectors = [p for p in parameters if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}],
        lr=peak_rate,
        betas=(0.9, 0.98),
        fused=True,
    )
    warmup = max(1, steps // 20)
    started = time.monotonic()
    bar = tqdm(range(steps), desc=caption, unit="step", mininterval=2.0)
    smooth = None
    for step in bar:
        share = max(0, step - warmup) / max(1, steps - warmup)
        rate = peak_rate * min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * share)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = losses(step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
        bar.set_postfix(loss=f"{smooth:.3f}", refresh=False)
    return time.monotonic() - started
