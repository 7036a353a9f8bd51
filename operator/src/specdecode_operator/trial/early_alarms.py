"""Alarms in the first block of a candidate, before the block counts.

While pods restart one after the other and warm up, the first of them answer requests already. Times
are not comparable then, but tokens per step are: a draft that does not fit is found by them, within
equal strata of what the pods in force have answered.
"""

from collections.abc import Iterable
from dataclasses import replace

from specdecode_operator.judge.evidence import ArmEvidence, Role, pool
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judge import judge_turns
from specdecode_operator.judge.judgement import Judgement
from specdecode_operator.judge.recording import observe_open
from specdecode_operator.judge.trial_evidence import TurnEvidence
from specdecode_operator.trial.block_pods import restarts_of, role_now, serving
from specdecode_operator.trial.blocks import known_evidence
from specdecode_operator.trial.context import TrialContext
from specdecode_operator.trial.counting import counted
from specdecode_operator.trial.crossover import outcome
from specdecode_operator.trial.state import HalfPair, Trial

EARLY = "AcceptLengthFell"
"""The reason that needs no comparable times."""


def watched(trial: Trial, context: TrialContext) -> Trial:
    """Count what pods of the candidate answer before their block counts; an outcome at an alarm."""
    if role_now(trial) is Role.BASELINE or trial.turn.counted_s is not None:
        return trial
    found = serving(trial, context)
    if context.snapshot is None or not found:
        return trial
    trial = counted(trial, context, found)
    if not isinstance(trial.evidence, TurnEvidence) or trial.evidence.pairs:
        return trial
    known = known_evidence(restarts_of(trial).known)
    ledgers = trial.ledgers.values()
    answered = (each.cut()[1].get(trial.target.arm, ArmEvidence()) for each in ledgers)
    pair = comparable(pool((known, trial.first_half.baseline)), answered)
    judgement = judge_early(pair, context.guard, trial.elapsed_s(context.now_s))
    if judgement.reason != EARLY:
        return trial
    end = outcome(judgement.verdict, judgement.reason, judgement.message)
    return replace(trial, open=pair, judgement=judgement, outcome=end)


def comparable(baseline: ArmEvidence, answered: Iterable[ArmEvidence]) -> HalfPair:
    """Requests of both arms in the strata that both have."""
    candidate = pool(answered)
    shared = baseline.strata.keys() & candidate.strata.keys()
    old, new = (
        ArmEvidence(strata={each: arm.strata[each] for each in shared})
        for arm in (baseline, candidate)
    )
    return HalfPair(old, new)


def judge_early(pair: HalfPair, guard: Guard, elapsed_s: float) -> Judgement:
    """Judge a pair that is not counted yet; only `EARLY` is meant."""
    return judge_turns(
        observe_open(TurnEvidence(), pair.baseline, pair.candidate), guard, elapsed_s
    )
