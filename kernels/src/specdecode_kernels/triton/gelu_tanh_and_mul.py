"""The gate of Gemma's feed-forward block, gelu by its approximation with tanh."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.metadata import as_rows
from specdecode_kernels.triton.dependent_launch import launch_options, wait_for_writes

BLOCK = 1024


@triton.jit
def gelu_tanh_and_mul_kernel(
    gate_ptr, up_ptr, out_ptr, stride_gate, stride_up, dim, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    wait_for_writes(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < dim
    gate = tl.load(gate_ptr + row * stride_gate + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * stride_up + columns, mask=inside, other=0.0).to(tl.float32)
    # Half of 1 + tanh(y) is the sigmoid of 2y; 2y = 2 sqrt(2 / pi) (x + 0.044715 x^3).
    inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    product = gate / (1.0 + tl.exp(tl.minimum(-inner, 80.0))) * up
    tl.store(out_ptr + row * dim + columns, product.to(out_ptr.dtype.element_ty), mask=inside)


def gelu_tanh_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    product = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    gates, ups = as_rows(gate), as_rows(up)
    count, dim = gates.shape
    if product.numel():
        gelu_tanh_and_mul_kernel[(count, triton.cdiv(dim, BLOCK))](
            *(gates, ups, product, gates.stride(0), ups.stride(0), dim),
            BLOCK=BLOCK,
            **launch_options(),
        )
    return product
