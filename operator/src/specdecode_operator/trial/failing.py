"""A candidate whose pods cannot start, or stop again and again: worse than any figure."""

from collections.abc import Iterable

from specdecode_operator.objects import pods as reading_pods
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.trial.context import TrialContext
from specdecode_operator.trial.state import End, Trial, TrialOutcome

MAX_RESTARTS = 2
"""Of a pod of the candidate: an engine that ends this often does not serve."""


def does_not_start(
    trial: Trial, context: TrialContext, found: Iterable[Manifest], what: str
) -> TrialOutcome | None:
    """The end of a trial whose candidate does not start; None if it may still.

    Args:
        found: pods of the candidate.
        what: these pods, for the message.
    """
    failing = [pod for pod in found if reading_pods.restarts(pod) >= MAX_RESTARTS]
    trouble = candidate_trouble(trial, context, failing)
    if trouble is None or not trouble.is_error:
        return None
    message = f"{what} does not start: {trouble.message}"
    return TrialOutcome(End.ROLLED_BACK, trouble.reason, message)


def candidate_trouble(
    trial: Trial, context: TrialContext, found: Iterable[Manifest]
) -> reading_pods.Trouble | None:
    """The first problem of some pods, those of the candidate's configuration first."""
    return reading_pods.trouble(found, trial.target.arm.config_hash, {}, context.observed.at)
