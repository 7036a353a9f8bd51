"""What a finished decode step measured, for the policy and the counters."""

from collections.abc import Sequence as Items

from specdecode_engine.adaptive.policy import Feedback
from specdecode_engine.adaptive.request_acceptance import RequestAcceptance
from specdecode_engine.batch.request import Output
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.steps.in_flight import InFlightStep, SequenceResult


def make_feedback(
    step: InFlightStep, shape: DraftShape, results: list[SequenceResult], outputs: Items[Output]
) -> Feedback:
    """Return what a decode step measured of its requests that continue.

    Args:
        shape: of the drafts that the decision allows.
        outputs: of `results`.
    """
    assert step.decision is not None
    requests = list[RequestAcceptance]()
    accepted, verified = list[int](), list[int]()
    for result, output in zip(results, outputs, strict=True):
        if output.finish_reason is None:
            sequence, hits, depth = result[0], len(result[1]) - 1, result[5][1]
            if hits and not depth:
                continue  # nobody knows how deep the verified part of a tree was
            requests.append(sequence.acceptance)
            accepted.append(hits)
            # The best nodes of a tree may be deeper than as many positions.
            verified.append(depth if depth > hits else hits)
    least = min([one.tokens for one in step.drafts], default=0)
    is_whole = verified.count(shape.num_steps) == len(verified)
    return Feedback(
        step.decision,
        len(step.sequences),
        step.kv_tokens,
        tuple(accepted),
        step.share * step.timing.busy_seconds(),
        step.is_alone,
        () if is_whole else tuple(verified),
        tuple(requests),
        step.rows,
        is_full=least == shape.num_tokens - 1 and not step.leaves_out_draft,
    )
