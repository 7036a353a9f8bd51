"""Kernels against references on this device: attention's by shape, then every other op.

Differences are given as parts of what rounding allows, so 1 is the bound for all; ops on whole
numbers must be equal. The shapes are small: it is about right or wrong, not about time.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor

from bench.gpu.context import Context
from bench.gpu.op_calls import op_calls
from bench.gpu.record import Row
from bench.gpu.runner import last_lines
from bench.gpu.targets import PARITY
from specdecode_kernels import FLOAT8, choose_backend
from specdecode_kernels.choice import Attention, Kernels
from specdecode_kernels.testing import Shape, backend_of, draw_case

WAYS: tuple[Kernels, ...] = ("torch", "triton")

LATENT = {"kv_heads": 1, "shared": 16, "dim": 576, "v_dim": 512, "is_latent": True}
"""Heads of multi-head latent attention, as in DeepSeek's models."""

ALLOWED = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Largest difference of numbers about 1: a few units of the type, and of sums in another order."""


def measure(context: Context) -> Iterator[Row]:
    """Yield a row per shape and kernels of attention, and per op."""
    for name, shape in attention_shapes(context.is_dry):
        yield _row_of_attention(name, shape, "triton", context.device)
        is_plain = not (shape.tree_rows or shape.pool_dtype or shape.is_latent)
        if shape.dtype == torch.bfloat16 and is_plain:
            yield _row_of_attention(name, shape, "flashinfer", context.device)
    for name in op_calls(context.device):
        yield _row(name, partial(_op, name, context.device))


def attention_shapes(is_dry: bool) -> Iterator[tuple[str, Shape]]:
    """Decode, verify, a tree and ragged prompts, by page size and type."""
    half = torch.float32 if is_dry else torch.bfloat16
    sizes = {"kv_heads": 2, "shared": 4, "dim": 16 if is_dry else 128}
    latents = LATENT | ({"dim": 24, "v_dim": 16} if is_dry else {})
    kinds: dict[str, dict[str, object]] = {
        "decode": {"qo_lens": (1, 1, 1)},
        "verify of 8": {"qo_lens": (8, 8), "is_causal": True},
        "tree of 8": {"qo_lens": (8, 8), "tree_rows": 8},
        "ragged prompts": {"qo_lens": (1, 7, 20), "is_causal": True},
        "verify of 8, float8 pool": {"qo_lens": (8, 8), "is_causal": True, "pool_dtype": FLOAT8},
        "latents, decode": {"qo_lens": (1, 1, 1), **latents},
        "latents, verify of 8": {"qo_lens": (8, 8), "is_causal": True, **latents},
        "latents, tree of 8": {"qo_lens": (8, 8), "tree_rows": 8, **latents},
    }
    pages, dtypes = ((4,), (half,)) if is_dry else ((1, 16), (half, torch.float32))
    longest = 24 if is_dry else 300
    for (kind, more), page, dtype in product(kinds.items(), pages, dtypes):
        if "is_latent" in more and dtype != half:
            continue  # no engine keeps latents in 32 bits on a GPU
        name = f"{kind}, page {page}, {str(dtype).removeprefix('torch.')}"
        settings = {**sizes, **more, "page_size": page, "longest": longest, "dtype": dtype}
        yield name, Shape(**settings)  # type: ignore[arg-type]


def _row_of_attention(name: str, shape: Shape, kernels: Attention, device: torch.device) -> Row:
    metric = f"attend by {kernels}, {name}"
    try:
        choice = choose_backend(
            kernels, device, shape.dtype, shape.dim, shape.pool_dtype,
            v_head_dim=shape.v_dim, is_latent=shape.is_latent,
        )  # fmt: skip
    except ValueError as obstacle:  # an old device has no float8, FlashInfer may be absent
        return Row(metric, None, "", target=PARITY, note=str(obstacle))
    case = draw_case(shape, 0).to(device)
    return _row(metric, lambda: difference(case.attend(), case.attend(choice.backend)))


def _row(metric: str, compare: Callable[[], float]) -> Row:
    """Compare; a kernel that raises is as wrong as can be, and the next one is compared."""
    try:
        return Row(metric, compare(), "of allowed", target=PARITY)
    except Exception as error:
        return Row(metric, float("inf"), "of allowed", target=PARITY, note=last_lines(error))


def _op(name: str, device: torch.device) -> float:
    results = [op_calls(device)[name](backend_of(way, device, torch.bfloat16)) for way in WAYS]
    return max(difference(a, b) for a, b in zip(*map(tensors_of, results), strict=True))


def tensors_of(result: object) -> tuple[Tensor, ...]:
    """List the tensors that an op answered."""
    if isinstance(result, Tensor):
        return (result,)
    assert isinstance(result, tuple), result
    return tuple(one for one in result if isinstance(one, Tensor))


def difference(expected: Tensor, found: Tensor) -> float:
    """Return how far apart two tensors are, as a part of what their type allows."""
    if expected.shape != found.shape:
        return float("inf")
    if not expected.is_floating_point():
        return 0.0 if torch.equal(expected, found) else float("inf")
    left, right = expected.double(), found.double()
    same = left == right
    apart = (left - right).abs() / (1 + left.abs())
    worst = torch.where(same, 0.0, apart).max().item() if apart.numel() else 0.0
    return float("inf") if worst != worst else worst / ALLOWED[expected.dtype]
