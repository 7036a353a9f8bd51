"""A router's choice of experts, at the sizes of published models."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.both_ways import Case, run
from specdecode_kernels import RoutingConfig

ROUTERS = {
    "Qwen3-30B-A3B": (128, RoutingConfig(top_k=8, scores="softmax", is_normalized=True)),
    "gpt-oss-20b": (32, RoutingConfig(top_k=4, scores="softmax_of_top_k")),
    "DeepSeek-V3": (
        256,
        RoutingConfig(
            top_k=8, scores="sigmoid", is_normalized=True, scale=2.5, num_groups=8, top_groups=4
        ),
    ),
}
"""Experts of a layer, and how a row chooses."""


def cases(device: torch.device) -> Iterator[Case]:
    """Rows of one decoded token up to a prefill chunk."""
    for name, (experts, config) in ROUTERS.items():
        bias = torch.randn(experts, device=device) if config.scores == "sigmoid" else None
        for rows in (1, 64, 4096):
            logits = torch.randn(rows, experts, device=device, dtype=torch.bfloat16)
            yield Case(
                f"{name} rows={rows}",
                logits.nbytes + rows * config.top_k * 8,
                lambda ops, logits=logits, config=config, bias=bias: ops.route_experts(
                    logits, config, bias
                ),
            )


if __name__ == "__main__":
    sys.exit(run("route_experts", cases))
