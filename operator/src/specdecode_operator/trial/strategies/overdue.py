"""How late a running trial is with its present phase, pair of turns or window.

The time of the latest progress is part of the stored state, so that a new leader continues it.
"""

from dataclasses import replace

from specdecode_api.duration import duration_s
from specdecode_api.v1alpha1 import Spec
from specdecode_operator.judge.trial_evidence import TurnEvidence
from specdecode_operator.judge.turns import LONGEST, SHORTEST
from specdecode_operator.trial.record.state import Kind, Phase, Trial
from specdecode_operator.trial.strategies import canary
from specdecode_operator.trial.strategies.blocks import least_block_s
from specdecode_operator.trial.strategies.crossover import PATIENCE_S
from specdecode_operator.trial.strategies.early_alarms import KNOWN_S
from specdecode_operator.trial.strategies.guard import TrialTiming, guarded_timing


def advanced(before: Trial, after: Trial, now_s: float) -> Trial:
    """The trial with the time of its latest progress; a pause is none, and its end counts."""
    has_resumed = before.is_paused and not after.is_paused
    if has_resumed or _position(before) != _position(after):
        return replace(after, progress_s=now_s)
    return after


def overdue_s(trial: Trial, spec: Spec, now_s: float) -> float | None:
    """Seconds beyond twice the longest usual time of what is open; None while paused."""
    if trial.is_paused:
        return None
    usual_s = _usual_s(trial, guarded_timing(spec.rollout, trial), spec)
    return max(0.0, now_s - trial.progress_s - 2.0 * usual_s)


def _position(trial: Trial) -> tuple[Phase, int]:
    evidence = trial.evidence
    complete = len(evidence.pairs) if isinstance(evidence, TurnEvidence) else trial.window
    return trial.phase, complete


def _usual_s(trial: Trial, timing: TrialTiming, spec: Spec) -> float:
    """The longest usual time of the present phase, pair or window, with patience for pods."""
    startup_s = duration_s(spec.lifecycle.startup_timeout) * max(1, spec.replicas)
    has_new_pods = trial.kind is Kind.CANARY or trial.restarts is not None
    if trial.phase.is_ending:
        return startup_s if has_new_pods else PATIENCE_S
    if trial.phase is not Phase.MEASURING:
        return PATIENCE_S + (_starting_s(trial, timing, startup_s) if has_new_pods else 0.0)
    if trial.kind is Kind.CANARY:
        return PATIENCE_S + canary.window_length_s(timing)
    if trial.restarts is None:
        return PATIENCE_S + 2.0 * (LONGEST * timing.block_s + timing.washout_s)
    startup = trial.restarts.startup
    block_s = least_block_s(startup, timing.block_s) * (1.0 + LONGEST - SHORTEST)
    return PATIENCE_S + 2.0 * (startup.all_s + timing.warm_up_s + block_s)


def _starting_s(trial: Trial, timing: TrialTiming, startup_s: float) -> float:
    if trial.restarts is not None:
        return KNOWN_S
    return timing.warm_up_s if trial.phase is Phase.WARMING_UP else startup_s
