"""Resolves the defaults of a speculation to the numbers of the boot file."""

from dataclasses import dataclass

from specdecode_api.speculation import default_draft_tokens, effective_num_steps
from specdecode_api.v1alpha1.speculation import Speculation


@dataclass(frozen=True, slots=True)
class ResolvedSpeculation:
    """The draft steps at start, and the number of nodes that such a step verifies.

    `num_draft_tokens` is None if the engine derives it for each candidate of a table, or if
    nothing is drafted.
    """

    num_steps: int
    num_draft_tokens: int | None


def resolve(speculation: Speculation) -> ResolvedSpeculation:
    """Fill in the numbers that the user left out."""
    candidates = speculation.adaptive.candidates()
    num_steps = effective_num_steps(speculation.algorithm, speculation.num_steps, candidates)
    num_draft_tokens = speculation.num_draft_tokens
    is_one_depth = not candidates and num_steps > 0
    if num_draft_tokens is None and is_one_depth:
        num_draft_tokens = default_draft_tokens(speculation.topk, num_steps)
    return ResolvedSpeculation(num_steps, num_draft_tokens)
