"""Which trials of a deployment are deleted: all that ended but for the latest."""

from collections.abc import Iterable
from typing import Final

from specdecode_operator.objects.kinds import Manifest

KEPT_TRIALS: Final = 10
"""Ended trials that are kept, with the evidence of their verdicts."""


def has_ended(trial: Manifest) -> bool:
    """Whether the trial has reached its last phase."""
    return (trial.get("status") or {}).get("phase") == "Ended"


def has_promoted(trial: Manifest) -> bool:
    """Whether the status reports a promotion, or the way to one."""
    status = trial.get("status") or {}
    return status.get("phase") == "Promoting" or status.get("verdict") == "Promoted"


def surplus_trials(trials: Iterable[Manifest], kept: int = KEPT_TRIALS) -> tuple[Manifest, ...]:
    """Return the ended trials to delete: all but the `kept` latest; running ones stay."""
    ended = [trial for trial in trials if has_ended(trial)]
    ended.sort(key=_end, reverse=True)
    return tuple(ended[kept:])


def _end(trial: Manifest) -> tuple[str, str]:
    # RFC 3339 in UTC, as the operator writes it, is in order as text.
    return str(trial["status"].get("endedAt") or ""), str(trial["metadata"]["name"])
