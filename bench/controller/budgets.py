"""The policies that serve requests that differ, built for a machine."""

from collections.abc import Callable

from controller.chooser import Chooser
from controller.loads import DEEPEST
from controller.policies import START, points, table
from controller.profiles import Profile
from controller.rivals.ema_zero_step import ema_zero_step
from controller.rivals.verify_budget import VerifyBudget
from controller.traffic import CONCURRENCY
from specdecode_engine.adaptive.cost import CostModel
from specdecode_engine.adaptive.goodput import GoodputPolicy

PER_REQUEST, PER_BATCH, WRONG = "per request", "per batch", "per request, costs off by 20 %"
RIVAL_BUDGETS = ("stale budget", "ema zero-step")
MOST_ROWS = max(CONCURRENCY) * (DEEPEST + 1)


def all_budgets() -> dict[str, Callable[[Profile, int], Chooser]]:
    """Name → how to build it for a machine and a seed."""
    return {
        PER_REQUEST: lambda profile, seed: _goodput(profile),
        PER_BATCH: lambda profile, seed: _goodput(profile, is_padded=True),
        WRONG: lambda profile, seed: _goodput(profile, seed),
        "stale budget": lambda profile, seed: VerifyBudget(profile, DEEPEST, MOST_ROWS),
        "ema zero-step": lambda profile, seed: ema_zero_step(),
    }


def _goodput(
    profile: Profile, seed: int | None = None, *, is_padded: bool = False
) -> GoodputPolicy:
    """Build the policy; with `is_padded` every request verifies all of the draft."""
    cost = CostModel(points(profile, seed, CONCURRENCY), drafts_blocks=profile.drafts_blocks)
    return GoodputPolicy(table(), cost, START, is_padded=is_padded)
