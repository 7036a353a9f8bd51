"""Values that no computation produces by chance, so that reading them changes an answer."""

import torch
from torch import Tensor

INTEGER = -1_234_567_891
"""No index is that small: an operation that takes it for one raises."""
BYTE = 0x7F
"""In float8_e4m3fn this byte is NaN."""


def poison(tensor: Tensor) -> None:
    """Overwrite a CPU tensor: NaN, `INTEGER`, or the opposite of each truth value."""
    with torch.inference_mode():
        if tensor.dtype == torch.bool:
            tensor.logical_not_()
        elif tensor.dtype.itemsize == 1:
            tensor.view(torch.uint8).fill_(BYTE)
        elif tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            tensor.fill_(torch.nan)
        elif tensor.dtype in (torch.int32, torch.int64):
            tensor.fill_(INTEGER)
        else:
            tensor.fill_(torch.iinfo(tensor.dtype).max)
