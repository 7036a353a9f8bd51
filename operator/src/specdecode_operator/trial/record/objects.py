"""SpecDecodeTrials as input: which of them wait, and what their specs command."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.trial.record.record import Record
from specdecode_operator.trial.record.state import End, Origin, Trial, TrialOutcome
from specdecode_operator.trial.record.stored import has_ended


@dataclass(frozen=True, slots=True)
class Commands:
    """The id of the target that each verb concerns now; empty where it is not asked for."""

    pause: str = ""
    promote: str = ""
    abort: str = ""


_FINAL = frozenset({End.PROMOTED.value, End.ABORTED.value})
"""Results that no later command changes."""


def commands(trials: Iterable[Manifest], record: Record) -> Commands:
    """What the specs of trials ask for."""
    by_name = {str(each["metadata"]["name"]): each for each in trials}
    running = record.trial
    own = running.target.id if running else ""
    spec = by_name.get(running.name, {}).get("spec", {}) if running else {}
    state = spec.get("state")
    return Commands(
        pause=own if state == "Paused" else "",
        promote=own if spec.get("promote") else _late_promotion(by_name, record),
        abort=own if state == "Aborted" else "",
    )


def _late_promotion(by_name: dict[str, Manifest], record: Record) -> str:
    """Id of an edit that was tried and not taken, and that a user promotes all the same."""
    return next(
        (
            entry.id
            for entry in record.history
            if entry.origin == Origin.EDIT.value
            and entry.verdict not in _FINAL
            and by_name.get(entry.name, {}).get("spec", {}).get("promote")
        ),
        "",
    )


def waiting_trials(trials: Iterable[Manifest], record: Record) -> tuple[Manifest, ...]:
    """Trials of users that are to be begun, refused or promoted now, in the given order."""
    return tuple(each for each in trials if _is_waiting(each, record))


def _is_waiting(trial: Manifest, record: Record) -> bool:
    spec, metadata = trial["spec"], trial["metadata"]
    if spec.get("origin", Origin.USER) != Origin.USER or metadata.get("deletionTimestamp"):
        return False
    entry = record.ending_by_name(metadata["name"])
    result = entry.verdict if entry else (trial.get("status") or {}).get("verdict")
    if entry is not None or has_ended(trial):
        return bool(spec.get("promote")) and result not in _FINAL
    return spec.get("state") != "Paused" or bool(spec.get("promote"))


def published(trial: Trial, trials: Iterable[Manifest]) -> Trial:
    """The trial, published once its SpecDecodeTrial was observed."""
    if trial.is_published or _is_absent(trial, trials):
        return trial
    return replace(trial, is_published=True, blocked_by="")


def is_deleted(trial: Trial, trials: Iterable[Manifest]) -> bool:
    """Whether somebody deleted the SpecDecodeTrial while the trial runs."""
    return trial.is_published and _is_absent(trial, trials)


def _is_absent(trial: Trial, trials: Iterable[Manifest]) -> bool:
    return not any(
        each["metadata"]["name"] == trial.name and not each["metadata"].get("deletionTimestamp")
        for each in trials
    )


def reported(trial: Trial, outcome: TrialOutcome | None) -> TrialOutcome | None:
    """The outcome; a trial that only reports passes where another would be promoted."""
    if outcome is None or outcome.end is not End.PROMOTED or not trial.is_report:
        return outcome
    return TrialOutcome(End.PASSED, outcome.reason, outcome.message)
