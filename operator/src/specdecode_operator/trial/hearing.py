"""What the judge was given, as one JSON text of the history, and the same judgement once more."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from specdecode_operator.judge.evidence_document import BadEvidence, from_document, to_document
from specdecode_operator.judge.guard import Aim, Guard
from specdecode_operator.judge.judge import judge_pods, judge_turns
from specdecode_operator.judge.judgement import Judgement
from specdecode_operator.judge.trial_evidence import PodEvidence, TurnEvidence
from specdecode_operator.trial.state import Trial


@dataclass(frozen=True, slots=True)
class Hearing:
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


def write(trial: Trial, evidence: TurnEvidence | PodEvidence, guard: Guard, now_s: float) -> str:
    """Write what the judge of a trial was given last."""
    latest = trial.judgement
    document: dict[str, Any] = {
        "guard": asdict(guard),
        "elapsed_s": latest.elapsed_s if latest else trial.elapsed_s(now_s),
        "verdict": latest.verdict.value if latest else "",
        "reason": latest.reason if latest else "",
        "evidence": to_document(evidence),
    }
    return json.dumps(document, separators=(",", ":"))


def read(text: str) -> Hearing:
    """Read what `write` wrote.

    Raises:
        BadEvidence: it is something else.
    """
    try:
        document = json.loads(text)
        fields = document["guard"] | {"aim": Aim(document["guard"]["aim"])}
        return Hearing(
            Guard(**fields),
            float(document["elapsed_s"]),
            from_document(document["evidence"]),
            str(document["verdict"]),
            str(document["reason"]),
        )
    except BadEvidence:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BadEvidence(f"the evidence cannot be read: {error}") from error
