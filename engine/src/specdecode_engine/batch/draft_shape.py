"""Depth and width of the draft of one step, shared by scheduling and drafting."""

from dataclasses import dataclass

from specdecode_api.speculation import default_draft_tokens


@dataclass(frozen=True, slots=True)
class DraftShape:
    """How deep and wide to draft.

    `num_tokens` counts the nodes to verify, root included: num_steps + 1 for a chain (topk 1).
    """

    num_steps: int
    topk: int = 1
    num_tokens: int = 1

    @classmethod
    def chain(cls, num_steps: int) -> "DraftShape":
        """Draft a chain: one token after the other."""
        return cls(num_steps, 1, num_steps + 1)

    @classmethod
    def of(cls, num_steps: int, topk: int, num_tokens: int | None = None) -> "DraftShape":
        """Draft `num_steps` deep; a tree without a number of nodes gets the usual one."""
        if topk == 1 or num_steps == 0:
            return cls.chain(num_steps)
        return cls(num_steps, topk, num_tokens or default_draft_tokens(topk, num_steps))

    @property
    def path_length(self) -> int:
        """Nodes on the longest path, root included: the width of everything that was accepted."""
        return min(self.num_steps, self.num_tokens - 1) + 1

    @property
    def scratch_rows(self) -> int:
        """Rows of a draft's scratch that the nodes expanded in one step take."""
        return self.topk * max(self.num_steps - 1, 1)
