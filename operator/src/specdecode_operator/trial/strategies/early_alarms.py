"""Alarms before anything counts: while the first pods of a candidate serve, and all warm up.

Times are not comparable then, but tokens per step are: a draft that does not fit is found by them.
Pods of a canary are compared with pods that serve at the same time (`canary`); where all pods
restart, there are none, and what the pods in force answered just before stands in, within equal
strata. Looks are `EARLY_LOOK_S` apart until the candidate has answered `EARLY_REQUESTS`.
"""

from collections.abc import Iterable
from dataclasses import replace

from specdecode_operator.judge.evidence import ArmEvidence, Role, pool
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judge import judge_turns
from specdecode_operator.judge.judgement import Judgement
from specdecode_operator.judge.recording import compare_with, observe_open
from specdecode_operator.judge.trial_evidence import TurnEvidence
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.trial.record.state import HalfPair, Restarts, Trial
from specdecode_operator.trial.strategies.block_pods import restarts_of, role_now, serving
from specdecode_operator.trial.strategies.blocks import known_evidence, known_strata
from specdecode_operator.trial.strategies.context import TrialContext
from specdecode_operator.trial.strategies.counting import counted
from specdecode_operator.trial.strategies.crossover import outcome

EARLY = "AcceptLengthFell"
"""The reason that needs no comparable times."""
EARLY_LOOK_S = 2.5
"""Most time between looks while a broken candidate would be found by its next requests."""
EARLY_REQUESTS = 200
"""Requests of a candidate after which looks are rarer: what no load explains is shown by half."""
FEWEST_KNOWN = 20
"""Requests that make what was answered just before the first block a baseline of its own."""
KNOWN_REQUESTS = 100
KNOWN_S = 60.0
"""How much, and for how long, is counted before the first block."""


def is_early(trial: Trial) -> bool:
    """Whether no pair and no window is complete yet."""
    evidence = trial.evidence
    return not (evidence.pairs if isinstance(evidence, TurnEvidence) else trial.window)


def answered_by_candidate(trial: Trial) -> float:
    """Requests of the candidate that are counted since its pods serve."""
    blocks = (ledger.cut()[1] for ledger in trial.ledgers.values())
    arms = [block.get(trial.target.arm, ArmEvidence()) for block in blocks]
    return sum(sums.requests for arm in arms for sums in arm.strata.values())


def noted(
    restarts: Restarts, trial: Trial, context: TrialContext, ready: tuple[Manifest, ...]
) -> Restarts | None:
    """Note what the pods in force answer just before the first block; None: more is to come.

    Content changes in minutes, so what was answered since the pods' start stands in only where they
    answer too little.
    """
    blocks = (ledger.cut()[1] for ledger in trial.ledgers.values())
    recent = known_strata(block.get(trial.old, ArmEvidence()) for block in blocks)
    requests = sum(row.requests for row in recent)
    if requests < KNOWN_REQUESTS and context.now_s - trial.since_s < KNOWN_S:
        return None
    readings = context.readings(ready)
    history = known_strata(each.arms[trial.old] for each in readings if trial.old in each.arms)
    known = recent if requests >= FEWEST_KNOWN else history
    return replace(restarts, known=known, history=history)


def watched(trial: Trial, context: TrialContext) -> Trial:
    """Count what pods of the candidate answer before their block counts; an outcome at an alarm."""
    if role_now(trial) is Role.BASELINE or trial.period.counted_s is not None:
        return trial
    found = serving(trial, context)
    if context.snapshot is None or not found:
        return trial
    trial = counted(trial, context, found, trial.period.began_s)
    if not is_early(trial):
        return trial
    restarts = restarts_of(trial)
    known, history = known_evidence(restarts.known), known_evidence(restarts.history)
    ledgers = trial.ledgers.values()
    answered = (each.cut()[1].get(trial.target.arm, ArmEvidence()) for each in ledgers)
    pair = comparable(pool((known, trial.first_half.baseline)), answered)
    judgement = judge_early(pair, history, context.guard, trial.elapsed_s(context.now_s))
    if judgement.reason != EARLY:
        return trial
    end = outcome(judgement.verdict, judgement.reason, judgement.message)
    return replace(trial, open=pair, judgement=judgement, outcome=end)


def comparable(baseline: ArmEvidence, answered: Iterable[ArmEvidence]) -> HalfPair:
    """Requests of both arms in the strata that both have, and what engines found of drafts."""
    candidate = pool(answered)
    shared = baseline.strata.keys() & candidate.strata.keys()
    old, new = (
        ArmEvidence(
            strata={each: arm.strata[each] for each in shared}, unfit_drafts=arm.unfit_drafts
        )
        for arm in (baseline, candidate)
    )
    return HalfPair(old, new)


def judge_early(pair: HalfPair, history: ArmEvidence, guard: Guard, elapsed_s: float) -> Judgement:
    """Judge a pair that is not counted yet; only `EARLY` is meant."""
    found = observe_open(TurnEvidence(), pair.baseline, pair.candidate)
    return judge_turns(compare_with(found, history), guard, elapsed_s)
