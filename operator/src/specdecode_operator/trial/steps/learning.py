"""What the pods' figures speak for: a recommendation for the status, and a table for mode Auto."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from specdecode_api import names
from specdecode_api.duration import part_of_one
from specdecode_api.v1alpha1 import BucketRates, TableSteps
from specdecode_api.v1alpha1 import RecommendationStatus as Shown
from specdecode_operator.judge.evidence import ArmKey
from specdecode_operator.owned.hashes import canonical, digest
from specdecode_operator.recommend import (
    Bounds,
    BucketAdvice,
    Current,
    NotYet,
    Recommendation,
    pool_of,
    recommend,
)
from specdecode_operator.trial.record.configuration import InForce
from specdecode_operator.trial.record.state import Table
from specdecode_operator.trial.steps.start import Proposal
from specdecode_operator.trial.strategies.context import TrialContext

Advice = Recommendation | NotYet

SAME_GAIN = 0.01
"""A recommendation whose gain moved by less is not written again."""


@dataclass(frozen=True, slots=True)
class RecommendationCondition:
    """Whether there is a recommendation, as in a condition."""

    is_ready: bool
    reason: str
    message: str


def advise(now: InForce, context: TrialContext) -> Advice | None:
    """Ask the figures of the pods that serve the configuration in force; None where none are."""
    if context.snapshot is None:
        return None
    boot = now.built.boot
    serving = context.ready(names.ROLE_STABLE, now.built.config_hash)
    speculation = boot.speculation
    current = Current(
        speculation.policy, now.table, speculation.usual_steps, drafted=speculation.drafted_tokens
    )
    bounds = Bounds(
        prepared_steps=now.built.prepared_steps,
        least_gain=context.guard.min_gain,
        largest_batch=boot.scheduling.max_running_requests,
    )
    return recommend(pool_of(context.readings(serving)), current, bounds)


def proposal_of(advice: Advice | None, now: InForce) -> Proposal | None:
    """The table of a recommendation that is not mere noise."""
    if not isinstance(advice, Recommendation) or advice.gain_low <= 0:
        return None
    return Proposal(advice.entries, ArmKey(now.built.config_hash, advice.table_hash))


def condition(advice: Advice, held: str) -> RecommendationCondition:
    """Return the condition that reports a recommendation, or why there is none."""
    if isinstance(advice, NotYet):
        reason = "WithinNoise" if advice.reason == "NoGain" else "NotEnoughTraffic"
        return RecommendationCondition(False, reason, advice.message)
    seen = (
        f"{advice.gain:+.1%} tokens per second ({advice.gain_low:+.1%} to {advice.gain_high:+.1%})"
    )
    if advice.gain_low <= 0:
        return RecommendationCondition(False, "WithinNoise", f"{seen} is not more than noise")
    if held:
        return RecommendationCondition(False, "Held", f"{seen}; not tried: {held}")
    return RecommendationCondition(
        True, "Recommended", f"{seen} by the table in status.recommendation"
    )


def shown(
    advice: Advice | None, name: str, namespace: str, previous: Mapping[str, Any], now: str
) -> Shown | None:
    """A recommendation in the words of the status; the one before where little has changed.

    Args:
        previous: the status before; empty where there was none.
        now: time as Kubernetes writes it.
    """
    if not isinstance(advice, Recommendation):
        return None
    gain = f"{advice.gain:+.1%}"
    if previous.get("tableHash") == advice.table_hash:
        before = part_of_one(str(previous["expectedGain"]))
        if abs(before - advice.gain) < SAME_GAIN:
            return Shown.model_validate(previous)
    return Shown(
        table=steps_of(advice.entries),
        table_hash=advice.table_hash,
        expected_gain=gain,
        gain_low=f"{advice.gain_low:+.1%}",
        gain_high=f"{advice.gain_high:+.1%}",
        decode_steps=int(advice.decode_steps),
        validity_key=digest(asdict(advice.key)),
        made_at=now,
        batch_buckets=[_rates(bucket) for bucket in advice.buckets],
        patch_hint=patch_command(advice, name, namespace),
    )


def _rates(bucket: BucketAdvice) -> BucketRates:
    return BucketRates(
        batch_size=bucket.bucket,
        decode_steps=int(bucket.decode_steps),
        best=bucket.best,
        rates={str(steps): f"{rate:.2f}" for steps, rate in sorted(bucket.rates.items())},
    )


def patch_command(advice: Recommendation, name: str, namespace: str) -> str:
    """The command that writes a recommended table into the spec."""
    speculation = {
        "numSteps": advice.num_steps,
        "adaptive": {
            "batchSizes": [
                {"from": int(bound), "candidateSteps": list(entry.candidate_steps)}
                for bound, entry in advice.entries.items()
            ]
        },
    }
    patch = canonical({"spec": {"speculation": speculation}}).decode()
    return f"kubectl patch {names.SHORT_NAME} {name} -n {namespace} --type merge -p '{patch}'"


def steps_of(table: Table) -> list[TableSteps]:
    """A table as the status shows it."""
    return [
        TableSteps.model_validate(
            {"from": int(bound), "candidateSteps": sorted(entry.candidate_steps)}
        )
        for bound, entry in table.items()
    ]
