"""Rows of token ids: documents packed end to end, every row opening at a document's start."""

import math
import time
from collections.abc import Callable, Iterator
from itertools import cycle

import torch
from tokenizers import Tokenizer
from tqdm import tqdm

SHAPES = ((8, 192), (8, 192), (2, 768), (8, 192), (8, 192), (8, 192), (1, 1536), (8, 192))
"""Rows and tokens per row of the batches, in turn: mostly short, some as long as a long chat."""


def pack(texts: Iterator[str], tokenizer: Tokenizer) -> Iterator[torch.Tensor]:
    """Yield batches of ids, [rows, row_tokens] int64; what overhangs a row is cut off."""
    for rows, row_tokens in cycle(SHAPES):
        batch = []
        for _ in range(rows):
            row: list[int] = []
            while len(row) < row_tokens:
                row += tokenizer.encode(next(texts), add_special_tokens=False).ids
            batch.append(row[:row_tokens])
        yield torch.tensor(batch)


def _optimizers(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for embeddings, heads' scores and norms."""
    inside = {
        name: parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
        for name, parameter in model.named_parameters()
    }
    parameters = dict(model.named_parameters())
    return [
        torch.optim.Muon(
            [parameters[name] for name in inside if inside[name]], lr=0.02, weight_decay=0.05
        ),
        torch.optim.AdamW(
            [parameters[name] for name in inside if not inside[name]],
            lr=5e-3,
            betas=(0.9, 0.98),
            weight_decay=0.0,
            fused=True,
        ),
    ]


def descend(
    caption: str,
    model: torch.nn.Module,
    losses: Callable[[], torch.Tensor],
    steps: int,
) -> float:
    """Minimise `losses()` with warm-up and a cosine to zero; return the seconds taken."""
    optimizers = _optimizers(model)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    peaks = [group["lr"] for group in groups]
    warmup = max(1, steps // 20)
    started = time.monotonic()
    bar = tqdm(range(steps), desc=caption, unit="step", mininterval=2.0)
    smooth = None
    for step in bar:
        share = max(0, step - warmup) / max(1, steps - warmup)
        pace = min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * share)))
        for group, peak in zip(groups, peaks, strict=True):
            group["lr"] = pace * peak
        loss = losses()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
        bar.set_postfix(loss=f"{smooth:.3f}", refresh=False)
    return time.monotonic() - started
