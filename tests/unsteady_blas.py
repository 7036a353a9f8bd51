"""A stand-in for BLAS and torch's vector loops that makes last bits depend on the batch.

What it does to a row depends on how many rows the call has and on the row's place among them, as
with real libraries, but on every processor and in every call. Code whose rows are independent only
by observation fails under it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = {"linear", "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "matmul"}
REDUCTIONS = {"sum", "mean", "cumsum", "logsumexp", "_softmax", "_log_softmax"}
VECTOR_FUNCTIONS = {"exp", "log", "log1p", "logaddexp", "silu", "sigmoid", "gelu", "tanh"}
UNSTEADY = PRODUCTS | REDUCTIONS | VECTOR_FUNCTIONS


class UnsteadyBlas(TorchDispatchMode):
    """While it is active, products, sums, exponentials and logarithms are off by up to one ulp."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name.removesuffix("_") not in UNSTEADY and name not in UNSTEADY:
            return result
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return result
        self.calls += 1
        return result.copy_(perturbed(result)) if name.endswith("_") else perturbed(result)


def perturbed(result: Tensor) -> Tensor:
    """Scale every row [..., n] by 1 - eps, 1 or 1 + eps, by its place and the number of rows."""
    rows = result.double().reshape(-1, result.shape[-1] if result.dim() else 1)
    places = torch.arange(len(rows), device=result.device)
    shift = (places * 5 + len(rows) * 7) % 3 - 1
    scaled = rows * (1 + shift[:, None] * torch.finfo(result.dtype).eps)
    return scaled.to(result.dtype).reshape(result.shape)


def under_unsteady_blas(compute: Callable[[], Any]) -> Any:
    """Run `compute` and check that the stand-in was met."""
    with UnsteadyBlas() as blas:
        result = compute()
    assert blas.calls > 0
    return result
