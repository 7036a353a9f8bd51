"""Compares what a draft stores with weights of the target that it may repeat."""

from collections.abc import Callable

import torch
from torch import Tensor

from specdecode_engine.model.checkpoint.checkpoint import TensorStore
from specdecode_engine.model.layers.linears import rounded_alike
from specdecode_engine.ranks import Ranks
from specdecode_kernels import AnyWeight

COMPARED_BYTES = 4 << 20
"""Of a stored tensor that is compared with a loaded one, at a time."""


def repeats(
    store: TensorStore,
    name: str,
    loaded: AnyWeight,
    rows_of: Callable[[int, int], Tensor],
    ranks: Ranks,
) -> bool:
    """Whether a stored tensor is equal to a loaded weight; of both, few rows are read at a time.

    Args:
        rows_of: returns rows of the loaded weight.
        ranks: that have equal shares of the rows of the loaded one; all get one answer.
    """
    rows, *columns = loaded.shape
    own = slice(ranks.rank * rows, (ranks.rank + 1) * rows)
    has_shape = store.tensors[name].shape == (ranks.size * rows, *columns)
    return bool(ranks.least(has_shape and _are_equal(store.get(name)[own], loaded, rows_of)))


def _are_equal(stored: Tensor, loaded: AnyWeight, rows_of: Callable[[int, int], Tensor]) -> bool:
    rows = max(1, COMPARED_BYTES // max(1, stored[0].nbytes))
    for start in range(0, len(stored), rows):
        own = stored[start : start + rows]
        others = rows_of(start, start + len(own))
        if not torch.equal(rounded_alike(own.to(others.device), loaded), others):
            return False
    return True
