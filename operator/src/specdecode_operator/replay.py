"""Repeats the decision of a trial from its recorded evidence, and compares the verdicts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from specdecode_api import names
from specdecode_operator.judge.evidence_document import BadEvidence
from specdecode_operator.judge.judgement import Judgement, Verdict
from specdecode_operator.trial.hearing import Hearing, read

_WORDS = {
    "Promoted": Verdict.PROMOTE,
    "RolledBack": Verdict.ROLL_BACK,
    "Inconclusive": Verdict.INCONCLUSIVE,
}


class ReplayError(Exception):
    """A file that cannot be replayed; the message contains value, path and remedy."""


@dataclass(frozen=True, slots=True)
class Replay:
    """One trial, with the recorded and the repeated decision."""

    entry: Mapping[str, Any]
    hearing: Hearing
    again: Judgement

    @property
    def is_same(self) -> bool:
        """Whether both decisions are equal; true for a trial without a recorded decision."""
        recorded = (self.hearing.verdict, self.hearing.reason)
        return not any(recorded) or recorded == (self.again.verdict.value, self.again.reason)

    @property
    def was_the_judges(self) -> bool:
        """Whether the trial ended by this verdict and not by a person or an edit."""
        ruled = _WORDS.get(str(self.entry.get("verdict")))
        return ruled is self.again.verdict and self.entry.get("reason") == self.again.reason


def replay(path: str, text: str) -> list[Replay]:
    """Repeat every trial of a custom resource or history entry, as YAML or JSON.

    Raises:
        ReplayError: the text contains nothing to replay.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ReplayError(f"{path} is neither YAML nor JSON: {error}") from None
    found = [entry for entry in _entries(document) if entry.get("evidence")]
    if not found:
        raise ReplayError(
            f"{path} has no trial with evidence; save one with kubectl get {names.SHORT_NAME} NAME "
            "-o yaml, or an item of its status.history"
        )
    replays = []
    for entry in found:
        try:
            hearing = read(entry["evidence"])
        except BadEvidence as error:
            raise ReplayError(f"{path}, trial {entry.get('id')}: {error}") from None
        replays.append(Replay(entry, hearing, hearing.judge()))
    return replays


def lines(replays: list[Replay]) -> Iterator[str]:
    """Format the recorded and the repeated decision of each trial."""
    for each in replays:
        entry, again = each.entry, each.again
        ended = f"{entry.get('verdict')}, {entry.get('reason')}"
        yield f"trial {entry.get('id')}, {entry.get('kind')}: {ended}"
        yield f"  recorded: {each.hearing.verdict or 'none'}, {each.hearing.reason}"
        yield f"  repeated: {again.verdict}, {again.reason}: {again.message}"
        if not each.was_the_judges:
            yield "  the trial was not ended by this verdict, but by a person, an edit or an engine"
        yield "  the same" if each.is_same else "  NOT the same"


def _entries(document: Any) -> list[Mapping[str, Any]]:
    if isinstance(document, list):
        return [entry for each in document for entry in _entries(each)]
    if not isinstance(document, Mapping):
        return []
    if document.get("kind") == names.KIND:
        return list((document.get("status") or {}).get("history") or ())
    if "items" in document:
        return _entries(document["items"])
    return [document]
