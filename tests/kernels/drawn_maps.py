"""Random maps of rows of bfloat16, whose sums are compared to the bit."""

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_kernels import QuantizedTensor
from specdecode_kernels.weights import pack_int4

MOST_PRODUCTS = 150_000
MOST_ROWS = 512
GROUPS = (32, 64, 128)
SIZES = ("usual", "usual", "tiny", "subnormal", "largest", "any")


@dataclass(frozen=True, slots=True)
class DrawnMap:
    """Rows, a weight and perhaps a bias; the name has what was drawn."""

    name: str
    x: Tensor
    weight: Tensor | QuantizedTensor
    bias: Tensor | None


def draw_map(seed: int, *, form: str | None = None) -> DrawnMap:
    """Draw a map of any form, or of one of `FORMS`."""
    rng = random.Random(f"map/{seed}")
    generator = torch.Generator().manual_seed(seed)
    form = form or rng.choice(FORMS)
    rows = rng.choice(
        (1, 1, 2, 3, rng.randint(4, 17), rng.randint(18, 80), rng.randint(81, MOST_ROWS))
    )
    inputs = rng.choice((rng.randint(1, 70), rng.randint(71, 400), 32 * rng.randint(1, 12)))
    outputs = max(
        1, min(rng.choice((1, 63, 64, 65, rng.randint(2, 200))), MOST_PRODUCTS // (rows * inputs))
    )
    shape, sizes = (outputs, inputs), (rng.choice(SIZES), rng.choice(SIZES))
    x = _numbers((rows, inputs), sizes[0], rng, generator)
    if form == "bfloat16":
        weight: Tensor | QuantizedTensor = _numbers(shape, sizes[1], rng, generator)
    else:
        weight = _quantized(form, shape, rng, generator)
    if rng.random() < 0.5:
        x = _orthogonal(x, weight)
    bias = _numbers((outputs,), "usual", rng, generator) if rng.random() < 0.3 else None
    name = f"seed {seed}: {form}, {rows} rows, {outputs} outputs, {inputs} inputs, {sizes}"
    return DrawnMap(name, x, weight, bias)


def _numbers(
    shape: tuple[int, ...], size: str, rng: random.Random, generator: torch.Generator
) -> Tensor:
    """Numbers of bfloat16: around 1, 2^-63 or 2^-126, up to the largest, or any but NaN."""
    drawn = torch.randn(shape, generator=generator)
    if size == "any":
        exponents = torch.randint(0, 255, shape, generator=generator)
        fractions = torch.randint(0, 128, shape, generator=generator)
        signs = torch.randint(0, 2, shape, generator=generator)
        bits = signs << 15 | exponents << 7 | fractions
        return bits.to(torch.uint16).view(torch.bfloat16)
    mixed = rng.random() < 0.5
    factor = {"usual": 1.0, "tiny": 2.0**-63, "subnormal": 2.0**-127, "largest": 2.0**124}[size]
    some = torch.rand(shape, generator=generator) < (0.3 if mixed else 1.0)
    return torch.where(some, drawn * factor, drawn).clamp(-3.3e38, 3.3e38).bfloat16()


CORRECTIONS = 3


def _orthogonal(x: Tensor, weight: Tensor | QuantizedTensor) -> Tensor:
    """Make output 0 nearly zero, so that rounding to bfloat16 hides no error of its sum.

    Each of the changed inputs corrects what the ones before left, which is 2^-8 of it.
    """
    whole = weight[:1] if isinstance(weight, Tensor) else weight.plain()[:1]
    of_output, rows = whole[0].double().nan_to_num(0.0), x.double()
    changed = of_output.abs().argsort(descending=True)[:CORRECTIONS]
    rows[:, changed] = 0.0
    for place in changed.tolist():
        wanted = -(rows @ of_output) / of_output[place]
        rows[:, place] = wanted.nan_to_num(0.0).clamp(-3.3e38, 3.3e38).bfloat16().double()
    return rows.bfloat16()


FORMS = (
    "bfloat16", "bfloat16", "int8", "int8 zeros", "int8 groups", "int8 groups zeros",
    "int8 groups order", "int8 groups zeros order", "int4", "int4 zeros", "int4 order",
    "int4 zeros order", "int4 wide", "float8", "float8 groups", "mxfp4", "nvfp4",
)  # fmt: skip


def _quantized(
    form: str, shape: tuple[int, int], rng: random.Random, generator: torch.Generator
) -> QuantizedTensor:
    outputs, inputs = shape
    is_grouped = "groups" in form or form.startswith("int4")
    group = {"mxfp4": 32, "nvfp4": 16}.get(form, rng.choice(GROUPS) if is_grouped else inputs)
    groups = outputs, -(-inputs // group)
    zeros = order = factors = None
    if "zeros" in form:
        most = 8 if "int4" in form else 128
        zeros = torch.randint(-most, most, groups, generator=generator).to(torch.int8)
    if "order" in form:
        order = torch.randperm(inputs, generator=generator).int()
    if form == "nvfp4":
        factors = torch.exp2(torch.randn(outputs, generator=generator))
    values = _stored(form, torch.randint(0, 256, shape, generator=generator))
    scales = _scales(form, groups, rng, generator)
    return QuantizedTensor(
        values, scales, torch.Size(shape), torch.bfloat16, group, zeros, factors, order
    )


def _stored(form: str, codes: Tensor) -> Tensor:
    """Numbers of a form by codes of 8 bits [outputs, inputs]."""
    if form.startswith("int8"):
        return codes.to(torch.uint8).view(torch.int8)
    if form.startswith("float8"):
        return torch.where(codes % 128 == 127, 0, codes).to(torch.uint8).view(torch.float8_e4m3fn)
    if form.startswith("int4"):
        return pack_int4(codes % 16 - 8)
    even = torch.nn.functional.pad(codes % 16, (0, codes.shape[1] % 2))
    return (even[:, ::2] | even[:, 1::2] << 4).to(torch.uint8).view(torch.float4_e2m1fn_x2)


def _scales(
    form: str, shape: tuple[int, int], rng: random.Random, generator: torch.Generator
) -> Tensor:
    if form == "mxfp4":
        first, count = rng.choice(((0, 3), (100, 40), (100, 40), (0, 255)))
        codes = torch.randint(first, first + count, shape, generator=generator)
        return codes.to(torch.uint8).view(torch.float8_e8m0fnu)
    if form == "nvfp4":
        codes = torch.randint(0, 127, shape, generator=generator)
        return codes.to(torch.uint8).view(torch.float8_e4m3fn)
    scales = torch.exp2(4 * torch.randn(shape, generator=generator))
    scales = scales * 2.0 ** rng.choice((0, 0, 0, 0, -130, -120, 100))
    return scales if "wide" in form else scales.bfloat16().float()
