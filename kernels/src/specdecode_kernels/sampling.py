"""Public ops from logits to tokens. Letters: B batch, N nodes, V vocabulary."""

import torch
from torch import Tensor

from specdecode_kernels import reference
from specdecode_kernels.implementation import Implementation, implementation_for
from specdecode_kernels.sampling_rows import DraftedNodes, PenaltyRows, SamplingRows


def penalise(logits: Tensor, rows: PenaltyRows, drafted: DraftedNodes | None = None) -> Tensor:
    """Apply penalties and bias to logits [B, N, V] float; a new tensor of the same shape.

    A node counts the drafted tokens on the path to it, its own included, as if they were output.
    Source: the penalties of the OpenAI API, and for repetition Keskar et al., "CTRL", 2019.
    """
    batch, nodes, vocab = _shape_of("penalise", logits)
    tables = (rows.counts, rows.in_prompt, rows.bias)
    if any(table.shape != (len(rows.counts), vocab) for table in tables):
        raise ValueError(
            f"penalise: counts {list(rows.counts.shape)}, in_prompt {list(rows.in_prompt.shape)} "
            f"and bias {list(rows.bias.shape)} must all be [states, {vocab}]"
        )
    if not all(table.is_contiguous() for table in (*tables, rows.states, rows.numbers)):
        raise ValueError("penalise: every tensor of rows must be contiguous; pass tables whole")
    if rows.states.shape != (batch,) or rows.numbers.shape != (batch, 3):
        raise ValueError(
            f"penalise: states {list(rows.states.shape)} must be [{batch}] and numbers "
            f"{list(rows.numbers.shape)} [{batch}, 3]"
        )
    if drafted is not None:
        _check_drafted(drafted, batch, nodes)
    if _implementation(logits) == "triton":
        from specdecode_kernels.triton import penalise as kernel

        return kernel.penalise(logits, rows, drafted)
    return reference.penalise(logits, rows, drafted)


def choose(
    logits: Tensor, rows: SamplingRows | None, positions: Tensor, ids: Tensor | None = None
) -> Tensor:
    """Choose a token at every node: the likeliest, or where a request samples, the likeliest after
    temperature, filters and the noise of (seed, position, token).

    Source: Daliri, Musco, Suresh, "Coupling without communication and drafter-invariant
    speculative decoding", 2024. Among equals the lowest index is chosen.

    Args:
        logits: [B, N, V] float.
        rows: None where no request samples.
        positions: [B, N] i64, absolute positions of the tokens to be chosen.
        ids: [V] i64, tokens that the logits stand for, where their places are not their ids.

    Returns:
        [B, N] i64, places in the vocabulary.
    """
    batch, nodes, vocab = _shape_of("choose", logits)
    if positions.shape != (batch, nodes):
        raise ValueError(
            f"choose: positions {list(positions.shape)} must be [{batch}, {nodes}], as are logits"
        )
    if rows is not None and any(number.shape != (batch,) for number in rows.tensors()):
        raise ValueError(f"choose: every sampling parameter must be [{batch}], one per request")
    if not vocab or (ids is not None and ids.shape != (vocab,)):
        raise ValueError(f"choose: a vocabulary of {vocab} tokens needs as many ids, and one token")
    if _implementation(logits) == "triton":
        from specdecode_kernels.triton import choose as kernel

        return kernel.choose(logits, rows, positions, ids)
    return reference.choose(logits, rows, positions, ids)


def _check_drafted(drafted: DraftedNodes, batch: int, nodes: int) -> None:
    if drafted.tokens.shape != (batch, nodes - 1):
        raise ValueError(
            f"penalise: drafted tokens {list(drafted.tokens.shape)} must be [{batch}, {nodes - 1}]"
        )
    if drafted.parents is not None and drafted.parents.shape != (batch, nodes):
        raise ValueError(
            f"penalise: parents {list(drafted.parents.shape)} must be [{batch}, {nodes}]"
        )


def _shape_of(op: str, logits: Tensor) -> tuple[int, int, int]:
    if logits.dim() != 3 or not logits.is_floating_point():
        raise ValueError(
            f"{op}: logits {list(logits.shape)} {logits.dtype} must be [batch, nodes, vocab] float"
        )
    batch, nodes, vocab = logits.shape
    return batch, nodes, vocab


def _implementation(logits: Tensor) -> Implementation:
    # Kernels take logits as the engine makes them: float32.
    return implementation_for(logits) if logits.dtype == torch.float32 else "torch"
