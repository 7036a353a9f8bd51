"""What a step verifies of each request: what the draft model drafts, or what NGRAM found.

NGRAM drafts on the host, before the launch, alone or next to a draft model.
"""

from collections.abc import Sequence as Items
from dataclasses import replace
from typing import NamedTuple

from specdecode_engine.adaptive.draft_source import (
    NO_TRIALS,
    DraftSources,
    RequestDrafts,
    RequestTrials,
    TimedStep,
    Trials,
    mean_tokens,
)
from specdecode_engine.adaptive.policy import Reason
from specdecode_engine.batch.proposals import Proposals
from specdecode_engine.batch.sequence import SchedulerOutput, Sequence
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.batch.verify_rows import VerifyRowsPolicy, check_verify_rows
from specdecode_engine.speculate.ngram.proposer import NgramProposer
from specdecode_engine.steps.in_flight import InFlightStep, StepResult
from specdecode_engine.steps.model_context import ModelContext


class StepDrafts(NamedTuple):
    """The drafts of a step, as far as the host knows them before the launch."""

    shape: DraftShape
    num_verify_rows: tuple[int, ...]  # nodes that each request verifies, root included
    found: Proposals | None = None  # by NGRAM
    is_verified: bool = False  # whether any request verifies what was found


PLAIN_SHAPE = DraftShape.chain(0)
NOTHING_DRAFTED = StepDrafts(PLAIN_SHAPE, ())


def plan_drafts(
    context: ModelContext,
    plan: SchedulerOutput,
    shape: DraftShape,
    choose_rows: VerifyRowsPolicy,
    in_flight: tuple[InFlightStep, ...],
) -> StepDrafts:
    """Draft on the host, and choose the source of each request.

    Args:
        shape: of the decided draft steps.
        choose_rows: chooses the nodes that each request verifies at most.
        in_flight: the step before, if it is not collected; a proposer waits for its tokens.
    """
    proposer, size = context.proposer, len(plan.decoding)
    assert plan.decision is not None
    has_model = context.drafter is not None and plan.feeds_draft
    is_model_alone = has_model and not shape.num_steps
    found = None
    if proposer is None or plan.decision.reason is Reason.UNFIT_PROBE:
        is_model_alone = True
    elif not is_model_alone:
        found = _propose(proposer, plan, shape, in_flight)
        if found is None and not has_model:
            return StepDrafts(PLAIN_SHAPE, (1,) * size)
    num_verify_rows = choose_rows(shape, plan.decoding)
    check_verify_rows(num_verify_rows, shape, size)
    if is_model_alone:
        return StepDrafts(shape, num_verify_rows)
    found = found or Proposals.nothing(size)
    if has_model:
        assert context.sources is not None
        found = choose_sources(context.sources, plan, found, shape, num_verify_rows)
        if all(found.drafts):
            return StepDrafts(shape, num_verify_rows, found)
    by_model = found.drafts or (False,) * size
    columns = zip(num_verify_rows, by_model, found.counts, strict=True)
    rows = [most if is_chosen else min(most, 1 + own) for most, is_chosen, own in columns]
    return StepDrafts(shape, tuple(rows), found, is_verified=True)


def _propose(
    proposer: NgramProposer,
    plan: SchedulerOutput,
    shape: DraftShape,
    in_flight: tuple[InFlightStep, ...],
) -> Proposals | None:
    """Draft after the tokens of the step before; None where nothing is found, or searched."""
    assert plan.decision is not None
    is_probe = plan.decision.reason is Reason.PROBE
    if not shape.num_steps or not proposer.begin_step(plan.decoding, is_probe=is_probe):
        return None
    received: dict[int, tuple[int, ...]] = {}
    for step in in_flight:
        received |= step.received()
    return proposer.propose(plan.decoding, received, shape)


def choose_sources(
    sources: DraftSources,
    plan: SchedulerOutput,
    found: Proposals,
    shape: DraftShape,
    num_verify_rows: Items[int],
) -> Proposals:
    """Choose the requests that verify what the draft model drafts."""
    num_steps = shape.num_steps
    columns = zip(plan.decoding, num_verify_rows, found.depths(), found.counts, strict=True)
    requests = [
        RequestDrafts(_trials_of(one), _depth(one, num_steps) if rows > 1 else 0, depth, count)
        for one, rows, depth, count in columns
    ]
    return replace(found, drafts=sources.choose(requests, num_steps, plan.kv_tokens))


def learn_sources(sources: DraftSources, step: InFlightStep, result: StepResult) -> None:
    """Count what a step with draft steps showed of the sources in each request that continues."""
    assert step.decision is not None
    if not step.decision.num_steps:
        return
    if result.sequences:
        tokens = sum(map(len, result.token_ids)) / len(result.token_ids)
        _learn_cost(sources, step, step.decision.num_steps, tokens)
    places = {id(sequence): place for place, sequence in enumerate(step.sequences)}
    for number, sequence in enumerate(result.sequences):
        token_ids, rows = result.token_ids[number], result.num_verify_rows[number]
        ngram, draft = NO_TRIALS, None
        if step.found is not None:
            ngram = step.found.agreement(places[id(sequence)], token_ids)
        if result.drafted[number] and not result.is_ngram[number] and rows > 1:
            depth = min(_depth(sequence, result.depths[number]), rows - 1)
            draft = Trials.of(len(token_ids) - 1, depth)
        sources.learn(_trials_of(sequence), draft, ngram)


def _learn_cost(sources: DraftSources, step: InFlightStep, num_steps: int, tokens: float) -> None:
    """Count the time of a step in which something was drafted, and the tokens of a request."""
    has_draft = not step.leaves_out_draft
    if not step.is_alone or (has_draft and not step.draft_is_current):
        return
    drafted = num_steps if has_draft else mean_tokens([one.tokens for one in step.proposed])
    size, seconds = len(step.sequences), step.timing.busy_seconds()
    timed = TimedStep(size, drafted, step.kv_tokens, seconds, tokens)
    sources.learn_cost(timed, has_draft=has_draft)


def _trials_of(sequence: Sequence) -> RequestTrials:
    if sequence.source_trials is None:
        sequence.source_trials = RequestTrials()
    return sequence.source_trials


def _depth(sequence: Sequence, num_steps: int) -> int:
    """Return how deep a sequence may accept a draft of so many draft steps."""
    limit = sequence.request.max_steps
    return num_steps if limit is None else min(num_steps, limit)
