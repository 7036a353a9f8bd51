"""The pods of a block of a trial that restarts pods, and whose block it is."""

from specdecode_api import names
from specdecode_operator.judge.evidence import Role
from specdecode_operator.judge.turns import role_in_turn
from specdecode_operator.objects import pods as reading_pods
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.trial.context import TrialContext
from specdecode_operator.trial.state import Phase, Restarts, Trial


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
