"""Requests that continue an answer: a part of the plain one is given, as by another engine."""

import random
from collections.abc import Sequence
from dataclasses import replace

from lossless.cases import Case, CaseRequest
from lossless.run import Answer

SHARE = 0.25
"""Of the requests."""


def resume_some(case: Case, seed: int, plain: Sequence[Answer]) -> tuple[CaseRequest, ...]:
    """Return the requests of a case, some of them after a part of their plain answer."""
    rng = random.Random(f"{seed}/{case.number}/resumed")
    return tuple(
        _resumed(request, answer, rng.random()) if rng.random() < SHARE else request
        for request, answer in zip(case.requests, plain, strict=True)
    )


def _resumed(request: CaseRequest, answer: Answer, part: float) -> CaseRequest:
    count = int(part * len(answer.token_ids))  # the last token, which may end it, is left
    return replace(
        request,
        begun=tuple(answer.token_ids[:count]),
        begun_logprobs=tuple(answer.logprobs[:count]),
    )
