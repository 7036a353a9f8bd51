"""What a speculation comes to once every default is worked out: the numbers of the boot file."""

from dataclasses import dataclass

from specdecode_api.speculation import default_draft_tokens, effective_num_steps
from specdecode_api.v1alpha1.speculation import Speculation


@dataclass(frozen=True, slots=True)
class ResolvedSpeculation:
    """The depth at start, and how many nodes a round verifies at that depth.

    `num_draft_tokens` is None where the engine has to work it out for each depth of a table,
    and where nothing is drafted.
    """

    num_steps: int
    num_draft_tokens: int | None


def resolve(speculation: Speculation) -> ResolvedSpeculation:
    """Work out the numbers that the user left out."""
    candidates = speculation.adaptive.candidates()
    num_steps = effective_num_steps(speculation.algorithm, speculation.num_steps, candidates)
    num_draft_tokens = speculation.num_draft_tokens
    is_one_depth = not candidates and num_steps > 0
    if num_draft_tokens is None and is_one_depth:
        num_draft_tokens = default_draft_tokens(speculation.topk, num_steps)
    return ResolvedSpeculation(num_steps, num_draft_tokens)
