"""Collects evidence about the draft from the results of a decode step."""

from specdecode_engine.adaptive.draft_evidence import NO_PROPOSALS, FirstPosition
from specdecode_engine.adaptive.draft_health import MAX_PER_REQUEST
from specdecode_engine.speculate.drafter import Drafter
from specdecode_engine.steps.in_flight import StepResult


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
