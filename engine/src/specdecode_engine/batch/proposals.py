"""What a proposer found for a batch, before the step that verifies it is launched.

Letters: B batch, N nodes of the step's drafts, root included.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdecode_engine.adaptive.draft_source import Trials
from specdecode_engine.batch.draft import Draft, Tree
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.batch.staging import StagingBuffer
from specdecode_kernels import Backend


@dataclass(frozen=True, slots=True)
class Proposals:
    """Drafted tokens of each request, 0 to N - 1 of them; a parent precedes its children."""

    tokens: tuple[list[int], ...]
    parents: tuple[list[int], ...]  # of node j + 1, where node 0 is the root
    drafts: tuple[bool, ...] = ()
    """Whether each request verifies what the draft model drafts instead; empty: none does."""

    @classmethod
    def nothing(cls, requests: int) -> "Proposals":
        """Return those of requests of which none has a match."""
        return cls(([],) * requests, ([],) * requests)

    @property
    def counts(self) -> tuple[int, ...]:
        """Tokens of each request."""
        return tuple([len(tokens) for tokens in self.tokens])

    def depths(self) -> tuple[int, ...]:
        """Return the depth of each request's deepest node, 0 without any."""
        return tuple([_depth(parents) for parents in self.parents])

    def agreement(self, request: int, followed: Items[int]) -> Trials:
        """Compare what was found for a request with the tokens that followed.

        Positions after the last of these are not decided.
        """
        node = agreed = 0
        is_refuted = False
        pairs = zip(self.tokens[request], self.parents[request], strict=True)
        for child, (token, parent) in enumerate(pairs, start=1):
            if parent != node or agreed == len(followed):
                continue
            if is_refuted := token != followed[agreed]:
                continue
            node, agreed = child, agreed + 1
        return Trials(agreed + is_refuted, agreed)


def _depth(parents: list[int]) -> int:
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    return max(depths)


@dataclass(frozen=True, slots=True, eq=False)
class StagedProposals:
    """Proposals on their way to the device; nodes without a token have token 0."""

    shape: DraftShape
    tokens: Tensor  # [B, N - 1] i64
    parents: Tensor | None  # [B, N] i64; None for chains
    counts: Tensor | None  # [B] i64, tokens of each request; None where all have N - 1
    drafts: Tensor | None  # [B] i64, 1 where the draft model's tokens count; None: nowhere

    @classmethod
    def stage(
        cls, proposals: Proposals, shape: DraftShape, staging: StagingBuffer
    ) -> "StagedProposals":
        width, rows = shape.num_tokens - 1, len(proposals.tokens)
        tokens: list[int] = []
        parents: list[int] = []
        for own_tokens, own_parents in zip(proposals.tokens, proposals.parents, strict=True):
            rest = [0] * (width - len(own_tokens))
            tokens += own_tokens + rest
            parents += [0, *own_parents, *rest]
        counts, staged_parents = proposals.counts, None
        if shape.topk > 1:
            staged_parents = staging.put(parents).view(rows, width + 1)
        return cls(
            shape,
            staging.put(tokens).view(rows, width),
            staged_parents,
            staging.put(counts) if min(counts) < width else None,
            staging.put(proposals.drafts) if any(proposals.drafts) else None,
        )

    def draft(self, ops: Backend) -> Draft:
        """Return the draft, once everything staged was sent."""
        if self.parents is None:
            return Draft(self.shape, self.tokens)
        depths, ancestry = ops.build_tree_mask(self.parents, self.shape.num_steps)
        if self.counts is not None:  # nodes without a token see themselves alone
            nodes = torch.arange(self.shape.num_tokens, device=depths.device)
            is_drafted = nodes <= self.counts[:, None]
            ancestry = ancestry & is_drafted[:, :, None] | (nodes[:, None] == nodes)
        return Draft(self.shape, self.tokens, Tree(self.parents, depths, ancestry))

    def next_to(self, drafted: Draft, ops: Backend) -> Draft:
        """Return the draft, with what the draft model drafted for the requests that verify that."""
        assert self.drafts is not None
        proposed, is_drafted = self.draft(ops), self.drafts[:, None] != 0
        tokens = torch.where(is_drafted, drafted.tokens, proposed.tokens)
        if drafted.tree is None or proposed.tree is None:
            return replace(drafted, tokens=tokens)
        one, other = drafted.tree, proposed.tree
        tree = Tree(
            torch.where(is_drafted, one.parents, other.parents),
            torch.where(is_drafted, one.depths, other.depths),
            torch.where(is_drafted[:, :, None], one.ancestry, other.ancestry),
        )
        return Draft(self.shape, tokens, tree)
