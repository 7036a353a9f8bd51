"""How prompts that are computed at the same time share the prompt tokens of a step."""

from collections.abc import Sequence


def share_budget(missing: Sequence[int], budget: int) -> list[int]:
    """Return how many tokens of each prompt a step computes.

    The oldest prompt gets at least half of the budget and is never overtaken for long; the rest
    goes to the others, the shortest first. A short prompt therefore does not wait until long ones
    that came before it are computed.

    Args:
        missing: tokens that each prompt still needs, at least 1, oldest prompt first.
        budget: prompt tokens of the step.
    """
    shares = [0] * len(missing)
    if not missing:
        return shares
    shares[0] = min(missing[0], -(-budget // 2))
    left = budget - shares[0]
    for index in (*sorted(range(1, len(missing)), key=missing.__getitem__), 0):
        more = min(missing[index] - shares[index], left)
        shares[index] += more
        left -= more
    return shares
