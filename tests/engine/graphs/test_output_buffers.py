"""What graphs leave of a forward: logits of the sampling type, and a draft's likeliest tokens."""

import pytest
import torch
from torch import Tensor

from specdecode_engine.batch.shapes import ForwardKind, ForwardShape, ForwardWidths
from specdecode_engine.graphs.buffers import BufferSpec, GraphBuffers
from specdecode_engine.model.forward import ForwardOutputs
from specdecode_kernels import TORCH, Backend
from specdecode_kernels.choice import Kernels
from specdecode_kernels.testing import backend_of

CPU = torch.device("cpu")
VOCAB = 300
STEP = ForwardShape(ForwardKind.DRAFT_STEP, 3, 1)


def logits_of(dtype: torch.dtype) -> Tensor:
    drawn = torch.randn(STEP.batch_size, VOCAB, generator=torch.Generator().manual_seed(5))
    drawn[0, 7] = drawn[0, 2] = 9.0  # among equals the lowest is chosen
    return drawn.to(dtype)


def stored(dtype: torch.dtype, logits: Tensor, ops: Backend = TORCH) -> ForwardOutputs:
    spec = BufferSpec({ForwardKind.DRAFT_STEP: ForwardWidths(VOCAB)}, 4, 4, dtype)
    outputs = GraphBuffers(spec, (STEP,), CPU, ops).outputs
    outputs.store(STEP, ForwardOutputs(logits))
    return outputs.view(STEP, STEP.batch_size)


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64,) * 2],
)
def test_logits_are_stored_as_an_eager_forward_widens_them(
    dtype: torch.dtype, wide: torch.dtype
) -> None:
    logits = logits_of(dtype)
    found, eager = stored(dtype, logits).logits, ForwardOutputs(logits).widened().logits
    assert found.dtype == eager.dtype == wide
    assert torch.equal(found, eager)


@pytest.mark.parametrize("kernels", ["torch", "cpu"])
def test_the_likeliest_token_of_each_row_is_stored(kernels: Kernels) -> None:
    logits = logits_of(torch.bfloat16)
    best = stored(torch.bfloat16, logits, backend_of(kernels, CPU, torch.bfloat16)).best
    assert best is not None
    assert best.ids.tolist() == logits.float().argmax(dim=-1, keepdim=True).tolist()
    assert best.ids[0].tolist() == [2]
