"""Requests that continue an answer: a part of the plain one is given, as by another engine."""

import random
from collections.abc import Collection, Sequence
from dataclasses import replace

from checks.lossless.cases import Case, CaseRequest
from checks.lossless.run import Answer
from specdecode_engine.grammar import Grammar

SHARE = 0.25
"""Of the requests."""
EVERY = 10
"""Tokens between two places where an answer with long texts is continued."""


def resume_some(case: Case, seed: int, plain: Sequence[Answer]) -> tuple[CaseRequest, ...]:
    """Return the requests of a case, some of them after a part of their plain answer."""
    rng = random.Random(f"{seed}/{case.number}/resumed")
    return tuple(
        _resumed(request, answer, rng.random()) if rng.random() < SHARE else request
        for request, answer in zip(case.requests, plain, strict=True)
    )


def resume_everywhere(
    case: Case, plain: Sequence[Answer], grammars: Collection[Grammar]
) -> tuple[tuple[CaseRequest, Answer], ...]:
    """Return the requests under one of the grammars, each after every tenth token, and the answer.

    All arrive at once, and none is aborted.
    """
    return tuple(
        (_begun(replace(request, arrives_at_step=0, aborted_at_step=None), answer, count), answer)
        for request, answer in zip(case.requests, plain, strict=True)
        if request.grammar in grammars
        for count in range(EVERY, len(answer.token_ids), EVERY)
    )


def _resumed(request: CaseRequest, answer: Answer, part: float) -> CaseRequest:
    # The last token, which may end it, is left.
    return _begun(request, answer, int(part * len(answer.token_ids)))


def _begun(request: CaseRequest, answer: Answer, count: int) -> CaseRequest:
    return replace(
        request,
        begun=tuple(answer.token_ids[:count]),
        begun_logprobs=tuple(answer.logprobs[:count]),
    )
