"""Counts what pods do in a trial, one ledger each."""

from dataclasses import replace

from specdecode_operator.fleet import Ledger
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.trial.record.state import Trial
from specdecode_operator.trial.strategies.context import TrialContext


def counted(
    trial: Trial,
    context: TrialContext,
    found: tuple[Manifest, ...],
    since_s: float | None = None,
) -> Trial:
    """Count what is new of these pods.

    From the first reading of a pod on: what came before was not of this trial. A pod that started
    after `since_s`, in seconds since 1970, counts in full.
    """
    ledgers = dict(trial.ledgers)
    for reading in context.readings(found):
        known = ledgers.get(reading.pod_uid)
        if known is None:
            begun_s = context.now_s if since_s is None else since_s
            known = Ledger.begin(begun_s, (trial.old, trial.target.arm))
        ledgers[reading.pod_uid] = known.take([reading])
    return replace(trial, ledgers=ledgers)


def cut(trial: Trial) -> Trial:
    """Leave out what was seen so far."""
    return replace(trial, ledgers={uid: ledger.cut()[0] for uid, ledger in trial.ledgers.items()})
