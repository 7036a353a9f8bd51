"""Reads what trials keep from the API server; `projection` and `status_view` write it.

A trial is stored in the status of its SpecDecodeTrial, an accepted configuration in a
ControllerRevision, and what outlives both in `status.effective`, `status.exploration` and
`status.lastTrial` of the SpecDecodeDeployment.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from specdecode_operator.judge.alpha_budget import AlphaBudget
from specdecode_operator.judge.evidence import ArmKey
from specdecode_operator.judge.evidence_document import BadEvidence, from_document, to_document
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.observed import Observed, is_controlled_by
from specdecode_operator.trial.record.overrides import Override
from specdecode_operator.trial.record.record import EndedTrial, Record, Spent, Tuned, seconds_of
from specdecode_operator.trial.record.revisions import Revision
from specdecode_operator.trial.record.state import Origin, Trial, target_id

Document = Mapping[str, Any]

_TRIAL = TypeAdapter(Trial)
_NOT_IN_STATE = {
    "evidence", "first_half", "open", "ledgers", "settled", "name", "is_published",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StateMark:
    """What is stored, to be compared: the parts that a reconcile continues from."""

    trial: tuple[str, Document, Document] | None
    """Name, state and evidence of the trial that runs."""
    effective: tuple[Any, ...]
    exploration: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class RecordMemory:
    """The record as the latest reconcile left it, with what is not stored.

    It is valid while what was to be stored, of which `mark` consists, is what is stored.
    """

    mark: StateMark
    record: Record


def recorded(
    observed: Observed, revisions: Mapping[str, Revision], memory: RecordMemory | None = None
) -> Record:
    """The record, with what is only in memory where that is still valid.

    Args:
        revisions: ControllerRevisions by name; without the one in force, nothing is accepted.
    """
    if memory is not None and memory.mark == mark_of(observed, memory.record.trial):
        kept = _kept(observed, memory.record.history)
        return replace(memory.record, history=kept)
    return read(observed, revisions)


def read(observed: Observed, revisions: Mapping[str, Revision]) -> Record:
    """The record as it is stored. What cannot be read counts as lost."""
    status = observed.resource.get("status") or {}
    effective: Document = status.get("effective") or {}
    exploration: Document = status.get("exploration") or {}
    revision = revisions.get(str(effective.get("revision", "")))
    overrides = _overrides(effective) if revision else ()
    rollout: Document = observed.resource["spec"].get("rollout") or {}
    # An immediate edit waits for no revision to be stored.
    is_accepted = bool(overrides) or rollout.get("editPolicy") == "Guarded"
    return Record(
        accepted=revision.spec if revision and is_accepted else None,
        tuned=_tuned(effective, revision),
        overrides=overrides,
        promoted_by=str(effective.get("trial", "")),
        trial=next(_running(observed), None),
        history=ended_trials(observed),
        alpha_budget=AlphaBudget(
            trials=exploration.get("trials", 0),
            promotions=tuple(exploration.get("promotions") or ()),
        ),
        inconclusive=exploration.get("inconclusive", 0),
        spent=tuple(
            Spent(
                seconds_of(each["startedAt"]),
                float(each["candidatePodSeconds"]),
                Origin(each.get("origin", Origin.RECOMMENDATION)),
            )
            for each in exploration.get("spent") or ()
        ),
    )


def ended_trials(observed: Observed) -> tuple[EndedTrial, ...]:
    """Trials that ended, the newest first; the latest even if its object was deleted."""
    found = [
        _ended(each) for each in reversed(observed.trials) if has_ended(each) and _has_verdict(each)
    ]
    found.sort(key=lambda each: str(each.status["endedAt"]), reverse=True)
    last: Document = (observed.resource.get("status") or {}).get("lastTrial") or {}
    if last and all(each.name != last["name"] for each in found):
        status = {name: last[name] for name in ("verdict", "reason", "endedAt") if name in last}
        status["startedAt"] = last["endedAt"]
        found.insert(0, EndedTrial(last["name"], last.get("id", ""), last["origin"], status))
    return tuple(found)


def state_of(trial: Trial) -> Document:
    """`status.state` of a trial that runs; the evidence is in `status.evidence`."""
    state: dict[str, Any] = _TRIAL.dump_python(
        trial.kept, mode="json", exclude=_NOT_IN_STATE, exclude_none=True
    )
    # The API server keeps whole numbers of up to 64 bits with a sign.
    return state | {"seed": str(trial.seed)}


def mark_of(observed: Observed, trial: Trial | None) -> StateMark:
    """What is stored.

    Args:
        trial: the trial in memory, of which nothing may be stored: its object is not created yet,
            or was deleted.
    """
    status = observed.resource.get("status") or {}
    return StateMark(
        _stored_trial(observed, trial),
        _effective_mark(status.get("effective") or {}),
        _exploration_mark(status.get("exploration") or {}),
    )


def mark_to_store(trial: Trial | None, effective: Document, exploration: Document) -> StateMark:
    """What `mark_of` returns once a step is stored."""
    kept = None
    if trial is not None and trial.is_published:
        kept = (trial.name, state_of(trial), to_document(trial.evidence))
    return StateMark(kept, _effective_mark(effective), _exploration_mark(exploration))


def _stored_trial(observed: Observed, trial: Trial | None) -> tuple[str, Document, Document] | None:
    for each in observed.trials:
        if _is_running(observed, each):
            status = each["status"]
            evidence = (status.get("evidence") or {}).get("evidence") or {}
            return each["metadata"]["name"], status["state"], evidence
    is_deleted = trial is not None and trial.is_published
    if trial is not None and is_deleted and not _is_there(observed, trial.name):
        return trial.name, state_of(trial), to_document(trial.evidence)
    return None


def _is_there(observed: Observed, name: str) -> bool:
    return any(each["metadata"]["name"] == name for each in observed.trials)


def _effective_mark(effective: Document) -> tuple[Any, ...]:
    fields = ("revision", "trial", "origin", "tableFor", "overrides")
    return tuple(effective.get(name) or None for name in fields)


def _exploration_mark(exploration: Document) -> tuple[Any, ...]:
    fields = ("trials", "promotions", "inconclusive", "spent")
    return tuple(exploration.get(name) or None for name in fields)


def _kept(observed: Observed, history: Iterable[EndedTrial]) -> tuple[EndedTrial, ...]:
    """The endings in memory whose objects exist, and the latest one."""
    return tuple(
        each for index, each in enumerate(history) if index == 0 or _is_there(observed, each.name)
    )


def _is_running(observed: Observed, trial: Manifest) -> bool:
    return (
        bool((trial.get("status") or {}).get("state"))
        and not has_ended(trial)
        and not trial["metadata"].get("deletionTimestamp")
        and is_controlled_by(trial, observed.uid)
    )


def _running(observed: Observed) -> Iterator[Trial]:
    for each in observed.trials:
        if _is_running(observed, each):
            try:
                yield _trial(each)
            except (BadEvidence, ValidationError, ValueError):
                continue  # its status reports that its state is lost


def _trial(manifest: Manifest) -> Trial:
    status = manifest["status"]
    known = {"name": manifest["metadata"]["name"], "is_published": True}
    bare = _TRIAL.validate_python(dict(status["state"]) | known)
    return replace(bare, evidence=from_document((status.get("evidence") or {}).get("evidence")))


def _has_verdict(trial: Manifest) -> bool:
    return bool(trial["status"].get("verdict")) and bool(trial["status"].get("endedAt"))


def _ended(trial: Manifest) -> EndedTrial:
    status = trial["status"]
    arm: Document = status.get("candidate") or {}
    key = ArmKey(arm["configHash"], arm.get("tableHash", "")) if arm else None
    origin = str(trial["spec"].get("origin", Origin.USER))
    return EndedTrial(trial["metadata"]["name"], target_id(key) if key else "", origin, status)


def _tuned(effective: Document, revision: Revision | None) -> Tuned | None:
    base = effective.get("tableFor")
    if revision is None or not revision.table or not base:
        return None
    key = ArmKey(base["configHash"], base.get("tableHash", ""))
    return Tuned(revision.table, key, Origin(effective.get("origin", Origin.USER)))


def _overrides(effective: Document) -> tuple[Override, ...]:
    shown: list[Document] = effective.get("overrides") or []
    return tuple(Override(each["field"], each.get("specHash", "")) for each in shown)


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
