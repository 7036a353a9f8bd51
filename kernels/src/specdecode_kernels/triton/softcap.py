"""The softcap of logits; float64 logits go to the reference."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.torch import elementwise as reference

BLOCK = 1024


@triton.jit
def softcap_kernel(x_ptr, out_ptr, cap, count, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    x = tl.load(x_ptr + places, mask=inside, other=0.0) / cap
    size = tl.abs(x)
    far = 1.0 - 2.0 / (tl.exp(2.0 * tl.minimum(size, 40.0)) + 1.0)
    far = tl.where(x < 0.0, -far, far)
    # Near 0 the difference would lose digits: an odd polynomial with Cephes' coefficients.
    is_near = size < 0.625
    small = tl.where(is_near, x, 0.0)
    square = small * small
    near = square * -5.70498872745e-3 + 2.06390887954e-2
    near = near * square - 5.37397155531e-2
    near = near * square + 1.33314422036e-1
    near = near * square - 3.33332819422e-1
    near = near * square * small + small
    tangent = tl.where(is_near, near, tl.where(x == x, far, x))
    tl.store(out_ptr + places, tangent * cap, mask=inside)


def softcap(x: Tensor, cap: float) -> Tensor:
    if x.dtype != torch.float32:
        return reference.softcap(x, cap)
    x = x.contiguous()
    capped = torch.empty_like(x)
    if x.numel():
        softcap_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, capped, cap, x.numel(), BLOCK=BLOCK)
    return capped
