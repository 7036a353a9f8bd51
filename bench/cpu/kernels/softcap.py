"""The softcap of logits, at the vocabularies of Gemma 2 and 3."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.both_ways import Case, run


def cases(device: torch.device) -> Iterator[Case]:
    """Rows of one decoded token up to trees of 16 requests."""
    for rows in (1, 16, 128):
        for vocab in (256_000, 262_208):
            logits = torch.randn(rows, vocab, device=device) * 10
            yield Case(
                f"rows={rows} vocab={vocab}",
                2 * logits.nbytes,
                lambda ops, logits=logits: ops.softcap(logits, 30.0),
            )


if __name__ == "__main__":
    sys.exit(run("softcap", cases))
