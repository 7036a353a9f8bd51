"""What a drafter proposes for a batch: a chain, or a tree of topk children per node.

Node 0 is the root, the bonus token; it is not part of `tokens`. Letters: B batch, N nodes, root
included.
"""

from dataclasses import dataclass

from torch import Tensor

from specdecode_engine.batch.shapes import DraftShape


@dataclass(frozen=True, slots=True)
class Tree:
    """Parents of nodes: a parent precedes its children. A model's draft has the best node first."""

    parents: Tensor  # [B, N] i64; the root's is itself
    depths: Tensor  # [B, N] i64; the root's is 0
    ancestry: Tensor  # [B, N, N] bool: row j marks node j and its ancestors


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens; without a tree, node j is the parent of node j + 1."""

    shape: DraftShape
    tokens: Tensor  # [B, N - 1] i64
    tree: Tree | None = None
    # [B, N - 1] f32, log-probability of the path to each token, by the draft's confidence head or
    # what it gives the tokens, none above the one before; where a step verifies less than it drafts
    scores: Tensor | None = None
