"""Where two answers to the same request differ."""

import numpy as np

from checks.lossless.run import Answer
from specdecode_engine.batch.request import TokenLogprobs

TOLERANCE = {"float64": 1e-9, "float32": 1e-5, "bfloat16": 1e-5}
PROMPT_TOLERANCE = {"float64": 1e-9, "float32": 0.0, "bfloat16": 0.0}
"""A prompt's rows are computed as they are without a draft; how they are cut changes no bit."""
KERNEL_TOLERANCE = 1e-4
"""Triton's sums depend on how many rows are computed at once: up to 1.3e-5 was seen in float32."""


def find_difference(
    plain: Answer,
    speculative: Answer,
    is_aborted: bool,
    dtype: str,
    *,
    by_kernels: bool = False,
) -> str | None:
    """Describe the first difference, or None; an aborted answer must be a prefix of the plain one.

    Args:
        by_kernels: log-probabilities, prompts' too, are then only near; tokens are still equal.
    """
    if is_aborted:
        count = len(speculative.token_ids)
        same = speculative.token_ids == plain.token_ids[:count]
        return None if same else "the aborted answer is not a prefix of the plain one"
    if speculative.token_ids != plain.token_ids:
        place = _first_difference(plain.token_ids, speculative.token_ids)
        return (
            f"token {place}: plain {plain.token_ids[place : place + 3]}, "
            f"speculative {speculative.token_ids[place : place + 3]}"
        )
    if speculative.finish_reason != plain.finish_reason:
        return f"finish: plain {plain.finish_reason}, speculative {speculative.finish_reason}"
    if difference := _expert_difference(plain, speculative):
        return difference
    records = (plain.prompt_logprobs, speculative.prompt_logprobs)
    of_prompt, of_answer = PROMPT_TOLERANCE[dtype], TOLERANCE[dtype]
    if by_kernels:
        of_prompt = of_answer = KERNEL_TOLERANCE
    if difference := _logprob_difference(*records, of_prompt):
        return f"prompt: {difference}"
    return _logprob_difference(plain.logprobs, speculative.logprobs, of_answer)


def _expert_difference(plain: Answer, speculative: Answer) -> str | None:
    left, right = plain.routed_experts, speculative.routed_experts
    if left is None or right is None:
        return None if left is right else "the experts of one answer are missing"
    if left.shape != right.shape:
        return f"experts: plain {left.shape}, speculative {right.shape}"
    if np.array_equal(left, right):
        return None
    row, layer, place = np.argwhere(left != right)[0].tolist()
    return f"expert {place} of mixture {layer} of token {row} differs"


def _first_difference(left: list[int], right: list[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def _logprob_difference(
    plain: list[TokenLogprobs], speculative: list[TokenLogprobs], tolerance: float
) -> str | None:
    if len(plain) != len(speculative):
        return f"{len(plain)} and {len(speculative)} log-probabilities"
    for place, (a, b) in enumerate(zip(plain, speculative, strict=True)):
        ids_differ = [token for token, _ in a.top] != [token for token, _ in b.top]
        if a.token_id != b.token_id or ids_differ:
            return f"log-probability {place}: {a} and {b}"
        values = zip(a.top, b.top, strict=True)
        worst = max([abs(a.logprob - b.logprob), *(abs(x - y) for (_, x), (_, y) in values)])
        if worst > tolerance:
            return f"log-probability {place} differs by {worst:.2e}"
    return None
