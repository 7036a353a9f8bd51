"""Repeats the decision of a trial from its recorded evidence, and compares the verdicts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from specdecode_api import names
from specdecode_operator.judge.evidence_document import BadEvidence
from specdecode_operator.judge.judgement import Judgement, Verdict
from specdecode_operator.trial.record.verdict_record import VerdictRecord, read

_RESULTS = {
    Verdict.PROMOTE: ("Promoted", "Passed"),
    Verdict.ROLL_BACK: ("RolledBack",),
    Verdict.INCONCLUSIVE: ("Inconclusive",),
}
"""Results of trials that end by a verdict."""


class ReplayError(Exception):
    """A file that cannot be replayed; the message contains value, place and remedy."""


@dataclass(frozen=True, slots=True)
class RecordedTrial:
    """A trial as it was saved; texts are empty where it has not ended."""

    place: str
    name: str
    strategy: str
    result: str
    reason: str
    evidence: Any


@dataclass(frozen=True, slots=True)
class Replay:
    """One trial, with the recorded and the repeated decision."""

    trial: RecordedTrial
    hearing: VerdictRecord
    again: Judgement

    @property
    def is_same(self) -> bool:
        """Whether both decisions are equal; true for a trial without a recorded decision."""
        recorded = (self.hearing.verdict, self.hearing.reason)
        return not any(recorded) or recorded == (self.again.verdict.value, self.again.reason)

    @property
    def was_the_judges(self) -> bool:
        """Whether the trial ended by this verdict and not by a person or an edit."""
        results = _RESULTS.get(self.again.verdict, ())
        return self.trial.result in results and self.trial.reason == self.again.reason


def replay(path: str, text: str) -> list[Replay]:
    """Repeat every trial of a SpecDecodeTrial, or of a list of them, as YAML or JSON.

    Raises:
        ReplayError: the text contains something else, or nothing to replay.
    """
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ReplayError(f"{path} is neither YAML nor JSON: {error}") from None
    found = [trial for each in documents if each is not None for trial in _trials(each, path)]
    replays = [_repeat(trial) for trial in found if trial.evidence]
    if not replays:
        raise ReplayError(
            f"{path} has no trial with evidence; save one with kubectl get "
            f"{names.SHORT_NAME_TRIAL} NAME -o yaml"
        )
    return replays


def lines(replays: list[Replay]) -> Iterator[str]:
    """Format the recorded and the repeated decision of each trial."""
    for each in replays:
        trial, again = each.trial, each.again
        ended = f"{trial.result}, {trial.reason}" if trial.result else "has not ended"
        yield f"trial {trial.name}, {trial.strategy}: {ended}"
        yield f"  recorded: {each.hearing.verdict or 'none'}, {each.hearing.reason}"
        yield f"  repeated: {again.verdict}, {again.reason}: {again.message}"
        if not each.was_the_judges:
            yield "  the trial was not ended by this verdict, but by a person, an edit or an engine"
        yield "  the same" if each.is_same else "  NOT the same"


def _repeat(trial: RecordedTrial) -> Replay:
    try:
        hearing = read(trial.evidence)
    except BadEvidence as error:
        raise ReplayError(f"{trial.place}, trial {trial.name}: {error}") from None
    return Replay(trial, hearing, hearing.judge())


def _trials(document: Any, place: str) -> Iterator[RecordedTrial]:
    """Yield every trial with its place."""
    if isinstance(document, list):
        for index, each in enumerate(document):
            yield from _trials(each, f"{place}[{index}]")
        return
    fields = _object(document, place)
    if fields.get("kind") == names.KIND_TRIAL:
        metadata = _object(fields.get("metadata") or {}, f"{place}.metadata")
        status = _object(fields.get("status") or {}, f"{place}.status")
        yield _recorded(place, metadata.get("name"), status.get("strategy"), status)
    elif "items" in fields:
        yield from _trials(fields["items"], f"{place}.items")
    else:
        raise ReplayError(
            f"{place} has no trial with evidence: its kind is {fields.get('kind')!r}; save a trial "
            f"with kubectl get {names.SHORT_NAME_TRIAL} NAME -o yaml"
        )


def _recorded(place: str, name: Any, strategy: Any, fields: Mapping[str, Any]) -> RecordedTrial:
    result, reason = (str(fields.get(field) or "") for field in ("verdict", "reason"))
    evidence = fields.get("evidence")
    return RecordedTrial(place, str(name), str(strategy or ""), result, reason, evidence)


def _object(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        text = repr(value)
        shown = text if len(text) <= 80 else f"{text[:77]}..."
        raise ReplayError(
            f"{place} is {shown}, not an object; save a trial with kubectl get "
            f"{names.SHORT_NAME_TRIAL} NAME -o yaml"
        )
    return value
