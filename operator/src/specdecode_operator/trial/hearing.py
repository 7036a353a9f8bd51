"""What the judge was given, as one JSON text of the history, and the judging of it once more."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from specdecode_operator.fleet.checkpoint import evidence_document, evidence_of
from specdecode_operator.judge.blocks import Block, judge_blocks
from specdecode_operator.judge.evidence import ArmEvidence, Role
from specdecode_operator.judge.guard import Aim, Guard
from specdecode_operator.judge.judgement import Judgement
from specdecode_operator.judge.pods import Pods, judge_pods
from specdecode_operator.trial.canary import by_pod
from specdecode_operator.trial.state import Kind, Trial

VERSION = 1


class BadEvidence(ValueError):
    """The text is no evidence of this release."""


@dataclass(frozen=True, slots=True)
class Hearing:
    """Everything that a verdict was made of."""

    guard: Guard
    elapsed_s: float
    blocks: tuple[Block, ...] | None
    """None where arms had pods of their own."""
    baseline: Pods
    candidate: Pods
    verdict: str
    """What the judge said then."""
    reason: str

    def judge(self) -> Judgement:
        """Judge again."""
        if self.blocks is not None:
            return judge_blocks(self.blocks, self.guard, self.elapsed_s)
        return judge_pods(self.baseline, self.candidate, self.guard, self.elapsed_s)


def write(trial: Trial, guard: Guard, now_s: float) -> str:
    """Write what the judge of a trial was given last, as short as it can be told."""
    told = trial.judgement
    document: dict[str, Any] = {
        "version": VERSION,
        "guard": asdict(guard),
        "elapsed_s": told.elapsed_s if told else trial.elapsed_s(now_s),
        "verdict": told.verdict.value if told else "",
        "reason": told.reason if told else "",
    }
    if trial.kind is Kind.CANARY:
        document["arms"] = [
            {uid: _plain(each) for uid, each in arm.items()} for arm in by_pod(trial)
        ]
    else:
        document["blocks"] = [
            [each.pair, each.pod, each.role.value, _plain(each.evidence)] for each in trial.observed
        ]
    return json.dumps(document, separators=(",", ":"))


def read(text: str) -> Hearing:
    """Read what `write` wrote.

    Raises:
        BadEvidence: it is something else.
    """
    try:
        document = json.loads(text)
        if document["version"] != VERSION:
            raise ValueError(f"it has version {document['version']}, this release {VERSION}")
        fields = document["guard"] | {"aim": Aim(document["guard"]["aim"])}
        blocks = None
        if "blocks" in document:
            blocks = tuple(
                Block(pair, pod, Role(role), _full(evidence))
                for pair, pod, role, evidence in document["blocks"]
            )
        old, new = (
            {uid: _full(each) for uid, each in arm.items()}
            for arm in document.get("arms", ({}, {}))
        )
        return Hearing(
            Guard(**fields),
            float(document["elapsed_s"]),
            blocks,
            old,
            new,
            str(document["verdict"]),
            str(document["reason"]),
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise BadEvidence(f"the evidence cannot be read: {error}") from error


def _plain(evidence: ArmEvidence) -> dict[str, Any]:
    return evidence_document(evidence) | {"pods": evidence.pods}


def _full(document: dict[str, Any]) -> ArmEvidence:
    return replace(evidence_of(document), pods=int(document["pods"]))
