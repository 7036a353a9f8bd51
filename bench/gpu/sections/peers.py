"""Peers on the same shape and machine: transformers, and FlashInfer's attention where carried.

transformers is a low bar for a server, but it can run everywhere: static cache, compiled where it
compiles automatically (on a GPU), and assisted generation with the same pair.
"""

from collections.abc import Iterator

import torch

from bench.cpu.kernels.attention_cell import DIM, make_calls
from bench.gpu.context import Context
from bench.gpu.engines import STRONG
from bench.gpu.hf_pair import HfPair
from bench.gpu.record import CannotMeasure, Row
from bench.gpu.sections.attention import decode_cells, time_one
from bench.gpu.targets import TO_FLASHINFER
from specdecode_kernels import choose_backend

ASSISTED_STEPS = 3
WARM_UP_TOKENS = 6
DYNAMIC = "growing cache"


def measure_transformers(context: Context) -> Iterator[Row]:
    """Generate with a growing cache, then assisted by the draft."""
    yield _row(context, f"transformers, batch 1, {DYNAMIC}", None, 0)
    name = f"transformers, batch 1, assisted, {ASSISTED_STEPS} tokens at a time"
    yield _row(context, name, None, ASSISTED_STEPS)


def measure_compiled(context: Context) -> Iterator[Row]:
    """Generate with a static cache, for which transformers compiles the model on a GPU."""
    if context.is_dry:
        raise CannotMeasure("a shadow device compiles nothing")
    yield _row(context, "transformers, batch 1, static cache, compiled on a GPU", "static", 0)


def _row(context: Context, name: str, cache: str | None, steps: int) -> Row:
    context.release()
    scale = context.scale
    pair = HfPair.build(scale.model, STRONG, context.device)
    # What is compiled depends on the length of the answer; else a few tokens warm up.
    warm_up = scale.answer_tokens if cache else WARM_UP_TOKENS
    for tokens in (warm_up, scale.answer_tokens):
        began_s = context.clock()
        pair.generate(scale.short_prompt_tokens, tokens, cache, steps)
        context.sync()
        took_s = context.clock() - began_s
    return Row(name, scale.answer_tokens / took_s, "tokens/s")


def measure_flashinfer(context: Context) -> Iterator[Row]:
    """Time decode attention by both; FlashInfer compiles for minutes where it never ran."""
    context.release()
    try:
        peer, *_ = choose_backend("flashinfer", context.device, torch.bfloat16, DIM)
    except ValueError as error:
        raise CannotMeasure(f"{error}; or carry it along (make gpu-carry)") from None
    own, *_ = choose_backend("triton", context.device, torch.bfloat16, DIM)
    for cell in decode_cells(context):
        if not context.has_time(5):
            return
        calls = make_calls(cell, context.device)
        own_us, peer_us = (time_one(context, calls, backend) for backend in (own, peer))
        note = f"{own_us:.1f} and {peer_us:.1f} µs"
        name = f"{cell}: our rate to flashinfer's"
        yield Row(name, peer_us / own_us, "x", target=TO_FLASHINFER, note=note)
