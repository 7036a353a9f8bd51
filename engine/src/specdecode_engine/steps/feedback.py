"""What a finished decode step measured: for the policy and the counters, and of the draft."""

from collections.abc import Sequence as Items

from specdecode_engine.adaptive.draft_evidence import NO_PROPOSALS, FirstPosition
from specdecode_engine.adaptive.draft_health import MAX_PER_REQUEST
from specdecode_engine.adaptive.policy import Feedback
from specdecode_engine.batch.request import Output
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.speculate.drafter import Drafter
from specdecode_engine.steps.in_flight import InFlightStep, StepResult


def make_feedback(
    step: InFlightStep, shape: DraftShape, result: StepResult, outputs: Items[Output]
) -> Feedback:
    """Return what a decode step measured; drafts that were not verified wholly are left out.

    Args:
        shape: of the drafts that the decision allows.
        outputs: of `result`.
    """
    assert step.decision is not None
    width, partial = shape.num_tokens - 1, list[tuple[int, int]]()
    if step.proposed:
        least = min(one.tokens for one in step.proposed)
        is_full = least == width and not step.leaves_out_draft
        accepted = _split_by_depth(shape.num_steps, result, outputs, partial)
    else:
        is_full = step.drafted == width
        accepted = _accepted_of_whole(shape, result, outputs) if is_full else []
    ended: tuple[int, ...] = ()
    if len(accepted) < len(outputs):  # else nearly every step would look for one in vain
        ended = tuple([max(s.returned_tokens - 1, 1) for s in result.sequences if s.finish_reason])
    return Feedback(
        step.decision,
        len(step.sequences),
        step.kv_tokens,
        tuple(accepted),
        step.share * step.timing.busy_seconds(),
        step.is_alone,
        tuple(partial),
        is_full,
        step.timing.gap_s(),
        ended,
    )


def _accepted_of_whole(shape: DraftShape, result: StepResult, outputs: Items[Output]) -> list[int]:
    """Count the accepted tokens of each request whose draft was verified wholly.

    Where the draft's probabilities divide what is verified, all count: a token that is not verified
    is one that is not accepted.
    """
    num_steps, nodes = shape.num_steps, shape.num_tokens
    columns = result.sequences, result.token_ids, result.num_verify_rows, outputs
    return [
        len(token_ids) - 1
        for sequence, token_ids, rows, output in zip(*columns, strict=True)
        if (rows == nodes or shape.verify_tokens)
        and output.is_unfinished
        and ((limit := sequence.request.max_steps) is None or limit >= num_steps)
    ]


def _split_by_depth(
    num_steps: int,
    result: StepResult,
    outputs: Items[Output],
    partial: list[tuple[int, int]],
) -> list[int]:
    """Count the accepted tokens of drafts of full depth; add shallower ones, with their depth."""
    accepted = []
    for place, (sequence, depth) in enumerate(zip(result.sequences, result.depths, strict=True)):
        is_whole = result.num_verify_rows[place] == result.drafted[place] + 1
        if not outputs[place].is_unfinished or not is_whole:
            continue
        if 0 < depth < num_steps:
            partial.append((len(result.token_ids[place]) - 1, depth))
        elif depth == num_steps and sequence.allowed_steps(num_steps) == num_steps:
            accepted.append(len(result.token_ids[place]) - 1)
    return accepted


def count_first_position(result: StepResult, drafter: Drafter) -> FirstPosition:
    """Count the draft tokens at the first position that are evidence.

    Requests that have ended are not, nor those whose rows the draft lacks, nor those whose tokens
    do not follow the target's own distribution. Tokens that NGRAM found are none of the draft's.
    """
    proposed = accepted = requests = 0
    columns = result.sequences, result.token_ids, result.num_verify_rows, result.is_ngram
    for sequence, token_ids, rows, is_ngram in zip(*columns, strict=True):
        if sequence.first_proposals >= MAX_PER_REQUEST or rows == 1 or is_ngram:
            continue
        if sequence.req_index is None or sequence.skips_draft:
            continue
        if not sequence.request.is_unrestricted:
            sequence.first_proposals = MAX_PER_REQUEST  # none of them counts
        elif drafter.is_complete(sequence.req_index):
            requests += sequence.first_proposals == 0
            sequence.first_proposals += 1
            proposed += 1
            accepted += len(token_ids) > 1
    return FirstPosition(proposed, accepted, requests) if proposed else NO_PROPOSALS
