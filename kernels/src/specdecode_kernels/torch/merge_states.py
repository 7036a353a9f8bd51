"""Two attentions of the same queries over different rows are one, by their log-sum-exp."""

import torch
from torch import Tensor

from specdecode_kernels.torch.by_row import by_row, update_by_row


def merge_states(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    """Weigh outs [rows, heads, dim] by the share of lses [rows, heads]; -inf has none."""
    lse = by_row(torch.logaddexp, lse_a, lse_b)
    out = torch.zeros_like(out_a, dtype=lse.dtype)
    for part, part_lse in ((out_a, lse_a), (out_b, lse_b)):
        share = update_by_row(torch.exp_, part_lse - lse)
        share = share.masked_fill(part_lse == -torch.inf, 0.0)[..., None]
        out += (part * share).masked_fill(share == 0.0, 0.0)  # 0 * NaN is NaN
    return out.to(out_a.dtype), lse
