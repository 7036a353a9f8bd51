"""The pods of a block of a trial that restarts pods, and whose block it is."""

from collections.abc import Iterable

from specdecode_api import names
from specdecode_operator.judge.evidence import Role
from specdecode_operator.judge.turns import role_in_turn
from specdecode_operator.objects import pods as reading_pods
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.trial.record.state import End, Phase, Restarts, Trial, TrialOutcome
from specdecode_operator.trial.strategies.context import TrialContext


def role_now(trial: Trial) -> Role:
    """Whose block it is."""
    return role_in_turn(trial.seed, trial.period.pair, trial.period.number % 2, 0)


def stamp_of(trial: Trial) -> str:
    """Value of the annotation of the pods of the present block."""
    return f"{trial.target.id}-{int(trial.started_s)}-{trial.period.number}"


def in_block(trial: Trial) -> bool:
    """Whether the pods run a block, not simply the configuration in force."""
    return trial.restarts is not None and trial.phase is Phase.MEASURING and not trial.is_paused


def serving(trial: Trial, context: TrialContext) -> tuple[Manifest, ...]:
    """Pods of the present block that serve."""
    return tuple(pod for pod in pods_of_block(trial, context) if reading_pods.is_ready(pod))


def is_of_block(trial: Trial, pod: Manifest) -> bool:
    """Whether a pod was made for the present block."""
    annotations = pod["metadata"].get("annotations") or {}
    return bool(annotations.get(names.ANNOTATION_BLOCK) == stamp_of(trial))


def pods_of_block(trial: Trial, context: TrialContext) -> tuple[Manifest, ...]:
    """Pods of the present block that are not ending."""
    stable = context.pods(names.ROLE_STABLE)
    return tuple(pod for pod in stable if is_of_block(trial, pod))


def restarts_of(trial: Trial) -> Restarts:
    """How the trial restarts pods."""
    assert trial.restarts is not None, "a trial that restarts pods knows how"
    return trial.restarts


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
