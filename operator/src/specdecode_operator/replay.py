"""Judges a trial of the history once more, from its evidence: does the same verdict come out?"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from specdecode_api import names
from specdecode_operator.judge.judgement import Judgement, Verdict
from specdecode_operator.trial.hearing import BadEvidence, Hearing, read

_WORDS = {
    "Promoted": Verdict.PROMOTE,
    "RolledBack": Verdict.ROLL_BACK,
    "Inconclusive": Verdict.INCONCLUSIVE,
}


class ReplayError(Exception):
    """A file that cannot be replayed; the text names value, place and remedy."""


@dataclass(frozen=True, slots=True)
class Replay:
    """One trial, what was said of it and what is said now."""

    entry: Mapping[str, Any]
    hearing: Hearing
    again: Judgement

    @property
    def is_same(self) -> bool:
        """Whether the judge says what it said; of a trial that it was never asked about, yes."""
        said = (self.hearing.verdict, self.hearing.reason)
        return not any(said) or said == (self.again.verdict.value, self.again.reason)

    @property
    def was_the_judges(self) -> bool:
        """Whether the trial ended by the judge's verdict and not by a person or an edit."""
        ruled = _WORDS.get(str(self.entry.get("verdict")))
        return ruled is self.again.verdict and self.entry.get("reason") == self.again.reason


def replay(path: str, text: str) -> list[Replay]:
    """Judge every trial of a resource, or the one of a history entry, as YAML or JSON.

    Raises:
        ReplayError: when there is nothing to replay in it.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ReplayError(f"{path} is neither YAML nor JSON: {error}") from None
    found = [entry for entry in _entries(document) if entry.get("evidence")]
    if not found:
        raise ReplayError(
            f"{path} has no trial with evidence; save one by kubectl get {names.SHORT_NAME} NAME "
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
    """Say of each trial what was said and what is said now."""
    for each in replays:
        entry, again = each.entry, each.again
        ended = f"{entry.get('verdict')}, {entry.get('reason')}"
        yield f"trial {entry.get('id')}, {entry.get('kind')}: {ended}"
        yield f"  judged then: {each.hearing.verdict or 'not yet'}, {each.hearing.reason}"
        yield f"  judged now:  {again.verdict}, {again.reason}: {again.message}"
        if not each.was_the_judges:
            yield "  it did not end by this: a person, an edit or an engine ended it"
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
