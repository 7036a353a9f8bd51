"""Tries on this machine whether attention on a CPU gives the same bits in every batch shape.

It rests on how a library happens to add; another processor or version may add otherwise. So a few
rows, short and long, are computed alone, beside others, and as parts of longer runs.
"""

from functools import cache

import torch

from specdecode_kernels.backends.cpu_backend import CpuBackend
from specdecode_kernels.layout import AttentionLayout, KvScale

LENGTHS = (1, 63, 64, 65, 128, 129, 192, 257, 511, 513, 1025)
"""Rows that the probed query row sees: around every length that keys are filled up to."""

RUNS = (2, 3, 5, 8, 33, 70, 200)
"""Query rows of one request of which the probed one is the last."""

_KV_HEADS, _PAGE = 2, 16


@cache
def differing(head_dim: int, shared: int, threads: int) -> str | None:
    """Say where a row's bits depend on the batch, or nothing; `threads` is what torch uses now."""
    assert threads == torch.get_num_threads()
    probe = _Probe(head_dim, shared)
    for length in LENGTHS:
        alone = probe.attend((length,), 1)[-1]
        for queries in RUNS:
            if queries <= length and not torch.equal(probe.attend((length,), queries)[-1], alone):
                return f"the last of {queries} rows over {length} keys"
        for others in ((1025,), (7, 600, 130)):
            batch = (*others, length)
            if not torch.equal(probe.attend(batch, 1)[-1], alone):
                return f"a row over {length} keys beside others over {others}"
    return None


class _Probe:
    """One text in as many pages as it takes, which every request of a batch shares."""

    def __init__(self, head_dim: int, shared: int) -> None:
        generator = torch.Generator().manual_seed(0)
        rows = -(-max(LENGTHS) // _PAGE) * _PAGE
        shape = (rows, _KV_HEADS, head_dim)
        self._k, self._v = (torch.randn(shape, generator=generator) for _ in range(2))
        self._q = torch.randn(rows, _KV_HEADS * shared, head_dim, generator=generator)
        self._pages = torch.arange(rows // _PAGE)
        self._backend = CpuBackend()

    def attend(self, lengths: tuple[int, ...], queries: int) -> torch.Tensor:
        """Attend from the last `queries` rows of every length."""
        seen = torch.tensor(lengths)[:, None] - torch.arange(queries - 1, -1, -1)
        layout = AttentionLayout(
            page_table=self._pages.expand(len(lengths), -1),
            page_size=_PAGE,
            query_lens=(queries,) * len(lengths),
            visible=seen.flatten(),
            max_visible=max(lengths),
        )
        q = self._q[seen.flatten() - 1]
        return self._backend.attend(q, self._k, self._v, layout, None, KvScale())
