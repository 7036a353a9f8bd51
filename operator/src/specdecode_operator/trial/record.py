"""The state of trials that outlives the process: one JSON text in a ConfigMap of the resource.

The status is written from it. It changes at ends of pairs and phases; what happens in between is
kept in memory (`RecordMemory`), and is measured again by a process that has no memory of it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from specdecode_api.v1alpha1 import HistoryEntry
from specdecode_operator.judge.alpha_budget import AlphaBudget
from specdecode_operator.judge.evidence import ArmKey
from specdecode_operator.judge.evidence_document import from_document, to_document
from specdecode_operator.trial.state import End, Origin, Table, Trial

VERSION = 1

Document = dict[str, Any]


class BadRecord(ValueError):
    """The text is not a record of this release; the message contains the remedy."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """A table that passed a trial and is in force in place of the spec's.

    It is valid for one configuration: `base` is its hash and that of its own table.
    """

    table: Table
    base: ArmKey
    origin: Origin


@dataclass(frozen=True, slots=True)
class AnnotationCommand:
    """What a person asked of a trial by annotation, and what came of it."""

    verb: str
    id: str
    is_done: bool
    message: str


@dataclass(frozen=True, slots=True)
class Spent:
    """What a trial of the operator's own cost, or may cost: pod-seconds on its candidate."""

    started_s: float
    candidate_pod_s: float


@dataclass(frozen=True, slots=True)
class Record:
    """What outlives a reconcile.

    `accepted` is the spec that a guarded resource keeps to; None where the spec itself counts.
    """

    accepted: Mapping[str, Any] | None = None
    tuned: Tuned | None = None
    trial: Trial | None = None
    history: tuple[HistoryEntry, ...] = ()
    alpha_budget: AlphaBudget = field(default_factory=AlphaBudget)
    requests: Mapping[str, AnnotationCommand] = field(default_factory=lambda: MappingProxyType({}))
    ended_s: float = 0.0
    """When the last trial ended."""
    overridden: str = ""
    """Digest of the accepted part of the spec that a user's trial has put out of force."""
    spent: tuple[Spent, ...] = ()
    """Trials of the operator's own within a day."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to keep."""
        return self == Record()

    def ending_of(self, target_id: str) -> HistoryEntry | None:
        """How the latest trial of a target ended, if it is remembered."""
        return next((each for each in self.history if each.id == target_id), None)

    def ending_by_name(self, name: str) -> HistoryEntry | None:
        """How the trial with this SpecDecodeTrial ended, if it is remembered."""
        return next((each for each in self.history if each.name == name), None)

    def is_rejected(self, target_id: str) -> bool:
        """Whether a target was tried and must not be tried again automatically."""
        ended = self.ending_of(target_id)
        return ended is not None and ended.verdict in REJECTED


@dataclass(frozen=True, slots=True)
class RecordMemory:
    """The record as the latest reconcile left it, with what is not stored.

    It is valid while `text`, which was to be stored, is what is stored.
    """

    text: str
    record: Record


REJECTED = frozenset({End.ROLLED_BACK, End.INCONCLUSIVE, End.ABORTED})

_TRIAL = TypeAdapter(Trial)
_TUNED = TypeAdapter(Tuned)
_ALPHA_BUDGET = TypeAdapter(AlphaBudget)
_SPENT = TypeAdapter(tuple[Spent, ...])
_REQUESTS = TypeAdapter(dict[str, AnnotationCommand])


def write(record: Record) -> str:
    """Write a record; an empty one as an empty text."""
    if record.is_empty:
        return ""
    document: Document = {
        "version": VERSION,
        "accepted": record.accepted,
        "tuned": _TUNED.dump_python(record.tuned, mode="json") if record.tuned else None,
        "trial": _trial_document(record.trial) if record.trial else None,
        "history": [
            each.model_dump(by_alias=True, exclude_none=True, mode="json")
            for each in record.history
        ],
        "alpha_budget": _ALPHA_BUDGET.dump_python(record.alpha_budget, mode="json"),
        "requests": _REQUESTS.dump_python(dict(record.requests), mode="json"),
        "ended_s": record.ended_s,
        "overridden": record.overridden,
        "spent": _SPENT.dump_python(record.spent, mode="json"),
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def read(text: str) -> Record:
    """Read what `write` wrote.

    Raises:
        BadRecord: it is something else.
    """
    if not text:
        return Record()
    try:
        document = json.loads(text)
        if document["version"] != VERSION:
            raise ValueError(f"it has version {document['version']}, this release {VERSION}")
        return Record(
            accepted=document["accepted"],
            tuned=_TUNED.validate_python(document["tuned"]) if document["tuned"] else None,
            trial=_trial(document["trial"]) if document["trial"] else None,
            history=tuple(map(HistoryEntry.from_resource, document["history"])),
            alpha_budget=_ALPHA_BUDGET.validate_python(document["alpha_budget"]),
            requests=_REQUESTS.validate_python(document["requests"]),
            ended_s=float(document["ended_s"]),
            overridden=str(document["overridden"]),
            spent=_SPENT.validate_python(document["spent"]),
        )
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise BadRecord(
            f"the record of trials cannot be read: {error}; restore it, or delete the ConfigMap: "
            "running engines then keep their configuration until the spec is put in force"
        ) from error


_IN_MEMORY = {"first_half", "open", "ledgers"}


def _trial_document(trial: Trial) -> Document:
    document: Document = _TRIAL.dump_python(
        trial.kept, mode="json", exclude={"evidence", *_IN_MEMORY}
    )
    return {**document, "evidence": to_document(trial.evidence)}


def _trial(document: Document) -> Trial:
    bare = _TRIAL.validate_python(
        {key: value for key, value in document.items() if key != "evidence"}
    )
    return replace(bare, evidence=from_document(document["evidence"]))
