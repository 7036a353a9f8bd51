"""What the judge was given, as `status.evidence` of a trial; and the judgement repeated."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from specdecode_operator.judge.evidence_document import BadEvidence, from_document, to_document
from specdecode_operator.judge.guard import Aim, Guard
from specdecode_operator.judge.judge import judge_pods, judge_turns
from specdecode_operator.judge.judgement import Judgement
from specdecode_operator.judge.trial_evidence import PodEvidence, TurnEvidence
from specdecode_operator.trial.record.state import Trial

_FIELDS = frozenset({"guard", "elapsed_s", "verdict", "reason", "evidence"})


@dataclass(frozen=True, slots=True)
class VerdictRecord:
    """Everything by which a verdict was reached."""

    guard: Guard
    elapsed_s: float
    evidence: TurnEvidence | PodEvidence
    verdict: str
    """The recorded verdict."""
    reason: str

    def judge(self) -> Judgement:
        """Judge again."""
        if isinstance(self.evidence, PodEvidence):
            return judge_pods(self.evidence, self.guard, self.elapsed_s)
        return judge_turns(self.evidence, self.guard, self.elapsed_s)


def write(
    trial: Trial, evidence: TurnEvidence | PodEvidence, guard: Guard, now_s: float
) -> dict[str, Any]:
    """Write what the judge of a trial was given last."""
    latest = trial.judgement
    return {
        "guard": asdict(guard),
        "elapsed_s": latest.elapsed_s if latest else trial.elapsed_s(now_s),
        "verdict": latest.verdict.value if latest else "",
        "reason": latest.reason if latest else "",
        "evidence": to_document(evidence),
    }


def read(document: Any) -> VerdictRecord:
    """Read what `write` wrote.

    Raises:
        BadEvidence: it is something else; the message contains the place.
    """
    if not isinstance(document, Mapping) or document.keys() != _FIELDS:
        raise BadEvidence(f"evidence must be an object with {sorted(_FIELDS)}")
    elapsed_s, verdict, reason = (document[name] for name in ("elapsed_s", "verdict", "reason"))
    if type(elapsed_s) not in (int, float) or not 0.0 <= elapsed_s < math.inf:
        raise BadEvidence(f"evidence.elapsed_s is {elapsed_s!r}; it must be 0 or more")
    if not isinstance(verdict, str) or not isinstance(reason, str):
        raise BadEvidence("evidence.verdict and evidence.reason must be texts")
    evidence = from_document(document["evidence"])
    return VerdictRecord(_guard(document["guard"]), float(elapsed_s), evidence, verdict, reason)


def _guard(document: Any) -> Guard:
    if not isinstance(document, Mapping):
        raise BadEvidence(f"evidence.guard is {document!r:.80}; it must be an object")
    numbers = {name: value for name, value in document.items() if name != "aim"}
    for name, value in numbers.items():
        if type(value) not in (int, float):
            raise BadEvidence(f"evidence.guard.{name} is {value!r:.80}; it must be a number")
    try:
        return Guard(**numbers, aim=Aim(str(document.get("aim"))))
    except (ValueError, TypeError) as error:
        raise BadEvidence(f"evidence.guard: {error}") from None
