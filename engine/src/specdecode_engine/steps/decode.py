"""Decoding: draft, run the target over the draft, accept what agrees, and commit it.

A step computes a row per node of many things: KV of every layer, tokens, hidden states, logits.
Only the rows of the accepted path are kept, in order, by `gather_accepted` and `compact`; their
width is that of the longest path, not of the tree.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request_table import DecodeBatch, RequestTable
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.batch.shapes import DraftShape, ForwardKind
from specdecode_engine.model.forward import VerifyLayout
from specdecode_engine.sampling.sampler import SamplingBatch
from specdecode_engine.steps.in_flight import InFlightStep
from specdecode_engine.steps.logprobs import LogprobRequest
from specdecode_engine.steps.model_context import ModelContext
from specdecode_engine.steps.prefill import StagedPrefill, prefill
from specdecode_kernels import Backend


@dataclass(frozen=True, slots=True, eq=False)
class StagedDecode:
    """The sequences of a decode step, with what the device has to know of them."""

    sequences: tuple[Sequence, ...]
    req_indices: Tensor  # [B] i64
    sampling: SamplingBatch
    logprobs: LogprobRequest | None
    limits: Tensor | None = None
    """[B] i64, the most draft tokens that may be accepted; None where no request limits them."""

    @classmethod
    def of(
        cls, context: ModelContext, sequences: tuple[Sequence, ...], num_steps: int
    ) -> "StagedDecode":
        """Stage them for a step of `num_steps` draft steps."""
        req_indices = [one.req_index for one in sequences if one.req_index is not None]
        staging = context.staging
        sampling = context.sampler.stage(req_indices)
        logprobs = LogprobRequest.stage(sequences, staging)
        limits = None
        if any(one.is_limited(num_steps) for one in sequences):
            most = [one.request.max_steps for one in sequences]
            limits = staging.put([num_steps if limit is None else limit for limit in most])
        return cls(sequences, staging.put(req_indices), sampling, logprobs, limits)


def decode(
    context: ModelContext,
    staged: StagedDecode,
    prompts: StagedPrefill | None,
    shape: DraftShape,
    steps: tuple[InFlightStep, ...],
) -> None:
    """Decode sequences, with prompt chunks in the same forward of the target.

    Each sequence gets 1 to path_length tokens: the bonus token after the accepted draft tokens is
    the target's own.

    Args:
        shape: of the drafts; without draft steps this is plain decoding.
        steps: receive what the host will read: of the chunks first, of the sequences last.
    """
    sampling = staged.sampling
    bounds = [sequence.most_computed for sequence in staged.sequences]
    batch = context.table.decode_batch(sampling.req_indices, bounds, staged.req_indices)
    draft, on_host = None, None
    if context.drafter is not None and shape.num_steps:
        draft = context.drafter.draft(batch, sampling, shape)
    inputs = _inputs(batch, draft)
    if draft is not None and sampling.grammar is not None:
        on_host = context.sampler.grammars.ship(sampling.grammar, draft)
    if prompts is not None:
        outputs = prefill(context, prompts, VerifyLayout(context.table)(inputs), steps[0])
    else:
        outputs = context.graphs.run(ForwardKind.VERIFY, inputs)
    positions = _sampled_positions(context.table, batch, draft, sampling)
    logits = outputs.logits.view(*positions.shape, -1)
    tokens = context.sampler.sample(logits, sampling, positions, draft, on_host)
    path, accepted = accept(context.ops, tokens, draft)
    if on_host is not None and sampling.grammar is not None:
        accepted = on_host.limit(accepted, sampling.grammar)
    if staged.limits is not None:
        # The token after a shorter path is the target's own too: the text stays the same.
        accepted = torch.minimum(accepted, staged.limits)
    tokens = gather_accepted(context.ops, tokens, path)
    emitted = accepted + 1
    _commit(context, batch, tokens, emitted, path, outputs.hidden)
    context.sampler.commit(sampling, tokens, emitted)
    logprobs = None
    if staged.logprobs is not None:
        logprobs = staged.logprobs.select(gather_accepted(context.ops, logits, path), tokens)
    drafted = 0 if draft is None else shape.num_tokens - 1
    steps[-1].send_tokens(staged.sequences, tokens, accepted, drafted, logprobs)


def _inputs(batch: DecodeBatch, draft: Draft | None) -> DecodeInputs:
    """Inputs of the target's forward over the bonus tokens and their draft."""
    if draft is None:
        return DecodeInputs(batch.req_indices, batch.longest, 1, batch=batch)
    rows, tree = draft.shape.num_tokens, draft.tree
    inputs = DecodeInputs(batch.req_indices, batch.longest, rows, draft.tokens, batch=batch)
    return inputs if tree is None else replace(inputs, depths=tree.depths, mask=tree.ancestry)


def _sampled_positions(
    table: RequestTable, batch: DecodeBatch, draft: Draft | None, sampling: SamplingBatch
) -> Tensor:
    """Positions [B, N] i64 of the tokens after each node; not read if nothing depends on them."""
    nodes = 1 if draft is None else draft.shape.num_tokens
    if not sampling.needs_positions:
        return batch.lengths.new_empty(batch.size, nodes)
    if draft is None or draft.tree is None:
        return table.next_positions(batch, nodes)
    return batch.lengths[:, None] + 1 + draft.tree.depths


def accept(ops: Backend, tokens: Tensor, draft: Draft | None) -> tuple[Tensor | None, Tensor]:
    """Accept the draft as far as it agrees with the target's tokens [B, N] i64, root first.

    Returns:
        Nodes of the accepted path [B, path_length] i64, padded with its last node, or None for a
        chain, whose path is its nodes; and the number of draft tokens on it [B] i64. The target's
        token at the path's last node is the next bonus token.
    """
    if draft is None:
        return None, torch.zeros(len(tokens), dtype=torch.int64, device=tokens.device)
    if draft.tree is None:
        accepted, _ = ops.verify_chain(tokens, draft.tokens)
        return None, accepted
    parents, length = draft.tree.parents, draft.shape.path_length
    path, accepted, _ = ops.verify_tree(tokens, draft.tokens, parents, length)
    return path, accepted


def gather_accepted(ops: Backend, values: Tensor, path: Tensor | None) -> Tensor:
    """Keep the rows of the path: [B, N, ...] to [B, path_length, ...]; all of them for a chain."""
    return values if path is None else ops.gather_accepted(values, path)


def _commit(
    context: ModelContext,
    batch: DecodeBatch,
    tokens: Tensor,
    emitted: Tensor,
    path: Tensor | None,
    aux_hidden_states: Tensor | None,
) -> None:
    """Keep what belongs to the accepted path, whose tokens are `tokens` [B, path_length] i64.

    Args:
        aux_hidden_states: [B * N, width], of every node.
    """
    if path is not None:
        # The path's rows move to the front, where a chain would have put them.
        context.pool.compact(context.table.pages, batch.req_indices, batch.lengths, path)
    context.table.append(batch, tokens, emitted)
    if context.drafter is None:
        return
    kept = None
    if aux_hidden_states is not None:
        by_node = aux_hidden_states.view(batch.size, -1, aux_hidden_states.shape[-1])
        kept = gather_accepted(context.ops, by_node, path)
    context.drafter.update_after_verify(batch, tokens.shape[1], kept)
