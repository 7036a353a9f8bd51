"""Guardrails: what a faster candidate must not pay with. They have their own share of the error.

By pair, a rail is broken if the candidate is shown to be worse (`randomization`), and by estimate
beyond its limit. Certain failures need no bound: repeated restarts, and failed requests in a share
that no load explains.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specdecode_operator.judge.effects import parts_and_wholes, share_effects
from specdecode_operator.judge.evidence import Role
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judgement import Rail
from specdecode_operator.judge.randomization import is_above
from specdecode_operator.judge.trial_evidence import Counts, row_of

FAILED_SHARE = 0.25
"""Failed requests of a candidate that is broken; the baseline has at most a fifth of that share."""
FEWEST_FAILED = 14


@dataclass(frozen=True, slots=True)
class Share:
    """A share that may grow by `guard.tail_rise` and `slack` before it counts as worse."""

    name: str
    part: str
    whole: str
    slack: float = 0.0


BY_PAIR = (
    Share("FirstToken", "first_tokens_slow", "first_tokens"),
    Share("InterToken", "inter_tokens_slow", "inter_tokens"),
    Share("Memory", "preempted", "answered", 0.02),
    Share("Errors", "failed", "answered", 0.001),
)


def rails_by_pair(pairs: Sequence[Counts], compared: Counts, guard: Guard) -> tuple[Rail, ...]:
    """Check the shares in complete pairs, of which `compared` is the sum."""
    alpha = guard.rail_alpha / len(BY_PAIR)
    rails = []
    for share in BY_PAIR:
        old, new = (
            part / whole if whole else 0.0
            for part, whole in parts_and_wholes(compared, share.part, share.whole)
        )
        limit = (1.0 + guard.tail_rise) * old + share.slack
        is_broken = new > limit and is_above(share_effects(pairs, share.part, share.whole), alpha)
        rails.append(Rail(share.name, old, new, limit, is_broken))
    return tuple(rails)


def certain_rails(everything: Counts, guard: Guard) -> tuple[Rail, ...]:
    """Check what is certain as soon as it happens."""
    old, new = row_of(everything, Role.BASELINE), row_of(everything, Role.CANDIDATE)
    restarts = old.restarts + guard.max_restarts + 2.0 * old.restarts**0.5
    explained = guard.restart_failures * new.restarts
    failed = max(0, new.failed - explained)
    shares_of = (
        old.failed / max(1, old.failed + old.answered),
        failed / max(1, failed + new.answered),
    )
    limit = max(FAILED_SHARE, 5.0 * shares_of[0])
    return (
        Rail("Restarts", old.restarts, new.restarts, restarts, new.restarts > restarts),
        Rail("Failures", *shares_of, limit, failed >= FEWEST_FAILED and shares_of[1] > limit),
    )
