"""Decoding: draft, run the target over the draft, accept what agrees, and commit it.

A step computes a row per node of many things: KV of every layer, tokens, hidden states, logits.
Only the rows of the accepted path are kept, in order, by `gather_accepted` and `compact`; their
width is that of the longest path, not of the tree.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.proposals import Proposals, StagedProposals
from specdecode_engine.batch.request_table import DecodeBatch, RequestTable
from specdecode_engine.batch.sequence import SchedulerOutput, Sequence
from specdecode_engine.batch.shapes import DraftShape, ForwardKind
from specdecode_engine.batch.staging import StagingBuffer
from specdecode_engine.batch.verify_rows import VerifyRows, divide
from specdecode_engine.model.forward import VerifyLayout
from specdecode_engine.sampling.sampler import SamplingBatch
from specdecode_engine.steps.in_flight import Drafted, InFlightStep
from specdecode_engine.steps.logprobs import LogprobRequest
from specdecode_engine.steps.model_context import ModelContext
from specdecode_engine.steps.prefill import StagedPrefill, prefill
from specdecode_engine.steps.routed_experts import RoutedRequest
from specdecode_kernels import Backend


class StagedDecode(NamedTuple):
    """The sequences of a decode step, with what the device has to know of them."""

    sequences: tuple[Sequence, ...]
    req_indices: Tensor  # [B] i64
    sampling: SamplingBatch
    logprobs: LogprobRequest | None
    routed: RoutedRequest | None
    num_verify_rows: tuple[int, ...]  # nodes that each sequence verifies, root included
    verify: VerifyRows | None  # None: all nodes of every draft
    limits: Tensor | None
    """[B] i64, the most draft tokens of a tree that may be accepted; None where no request limits
    them. A chain of fewer rows limits them by its length."""
    proposed: StagedProposals | None  # instead of what a drafter drafts, or next to it
    drafted: tuple[Drafted, ...]  # where sequences have drafts of their own
    feeds_draft: bool

    @property
    def kind(self) -> ForwardKind:
        """What the forward of the target returns."""
        return ForwardKind.VERIFY if self.feeds_draft else ForwardKind.PLAIN

    @classmethod
    def of(
        cls,
        context: ModelContext,
        plan: SchedulerOutput,
        shape: DraftShape,
        proposals: Proposals | None,
        counts: tuple[int, ...],
    ) -> "StagedDecode":
        """Stage the decode batch of a plan for drafts of one shape; `counts`: `num_verify_rows`."""
        sequences = plan.decoding
        req_indices = [one.req_index for one in sequences if one.req_index is not None]
        staging = context.staging
        return cls(
            sequences,
            staging.put(req_indices),
            context.sampler.stage(req_indices),
            LogprobRequest.stage(sequences, staging),
            RoutedRequest.stage(sequences, staging),
            counts,
            VerifyRows.stage(counts, shape.num_tokens, staging),
            _stage_limits(sequences, shape, staging),
            None if proposals is None else StagedProposals.stage(proposals, shape, staging),
            () if proposals is None else _drafted(proposals, shape),
            plan.feeds_draft,
        )


def _drafted(proposals: Proposals, shape: DraftShape) -> tuple[Drafted, ...]:
    """Return what is drafted for each sequence, by the draft model where that is chosen."""
    found = zip(proposals.counts, proposals.depths(), strict=True)
    own = [Drafted(count, depth, is_ngram=True) for count, depth in found]
    if not proposals.drafts:
        return tuple(own)
    by_model = Drafted(shape.num_tokens - 1, shape.num_steps)
    return tuple(
        by_model if is_chosen else one for one, is_chosen in zip(own, proposals.drafts, strict=True)
    )


def _stage_limits(
    sequences: tuple[Sequence, ...], shape: DraftShape, staging: StagingBuffer
) -> Tensor | None:
    most = shape.num_steps
    if shape.topk == 1 or all(one.allowed_steps(most) == most for one in sequences):
        return None
    return staging.put([one.allowed_steps(most) for one in sequences])


def _draft(
    context: ModelContext,
    batch: DecodeBatch,
    staged: StagedDecode,
    shape: DraftShape,
    step: InFlightStep,
) -> Draft | None:
    """Return the draft, and note on the step what the draft model has computed."""
    drafter, proposed = context.drafter, staged.proposed
    if not shape.num_steps:
        return None
    if drafter is None or not staged.feeds_draft:
        step.leaves_out_draft = drafter is not None
        return None if proposed is None else proposed.draft(context.ops)
    if proposed is not None and proposed.drafts is None:
        step.leaves_out_draft = True
        return proposed.draft(context.ops)
    step.draft_is_current = True
    drafted = drafter.draft(batch, staged.sampling, shape)
    return drafted if proposed is None else proposed.next_to(drafted, context.ops)


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
    draft, on_host = _draft(context, batch, staged, shape, steps[-1]), None
    inputs, verify = _inputs(context, batch, draft, staged.verify)
    if draft is not None and sampling.grammar is not None:
        counts = staged.num_verify_rows
        on_host = context.sampler.grammars.ship(sampling.grammar, draft, counts)
    if prompts is not None:
        nodes = VerifyLayout(context.table, context.rotary)(inputs)
        outputs = prefill(context, prompts, nodes, steps[0])
    else:
        outputs = context.graphs.run(staged.kind, inputs)
    positions = _sampled_positions(context.table, batch, draft, sampling)
    logits = _by_node(outputs.logits, batch.size, inputs.verify)
    tokens = context.sampler.sample(logits, sampling, positions, draft, on_host)
    proposed = draft if draft is None or verify is None else verify.limit(draft)
    path, accepted = accept(context.ops, tokens, proposed)
    if on_host is not None and sampling.grammar is not None:
        accepted = on_host.limit(accepted, sampling.grammar)
    if staged.limits is not None:
        # The token after a shorter path is the target's own too: the text stays the same.
        accepted = torch.minimum(accepted, staged.limits)
    sampled = gather_accepted(context.ops, tokens, path)
    # The next step may be launched before the host knows that a request has no token.
    tokens = sampled.clamp(min=0) if sampling.is_restricted else sampled
    _commit(context, batch, tokens, accepted, path)
    hidden = outputs.hidden
    hidden = None if hidden is None else _by_node(hidden, batch.size, inputs.verify)
    _feed_draft(context, batch, staged, path, hidden, tokens.shape[1])
    context.sampler.commit(sampling, tokens, accepted)
    logprobs = None
    if staged.logprobs is not None:
        logprobs = staged.logprobs.select(gather_accepted(context.ops, logits, path), tokens)
    routed = None
    if staged.routed is not None:
        routed = staged.routed.select(context, batch, tokens.shape[1])
    verified = None if verify is None or inputs.verified is None else verify.acceptable()
    others = logprobs, routed, staged.drafted, verified
    steps[-1].send_tokens(staged.sequences, sampled, accepted, _num_drafted(draft), *others)


def _num_drafted(draft: Draft | None) -> int:
    return 0 if draft is None else draft.shape.num_tokens - 1


def _by_node(rows: Tensor, batch_size: int, selected: VerifyRows | None) -> Tensor:
    """Arrange the rows of a forward [T, width] as [B, N, width]; see `VerifyRows.rows`."""
    if selected is None:
        return rows.view(batch_size, -1, rows.shape[-1])
    return rows[selected.rows[:batch_size]]


def _inputs(
    context: ModelContext, batch: DecodeBatch, draft: Draft | None, within: VerifyRows | None
) -> tuple[DecodeInputs, VerifyRows | None]:
    """Return inputs of the target's forward over the bonus tokens and their draft.

    A CUDA graph has rows for all nodes unless the draft's scores divide them; nodes that are not
    verified are then only never accepted.

    Args:
        within: the nodes that requests may verify; None: all of them.

    Returns:
        The inputs, and the nodes that are verified.
    """
    if draft is None:
        return DecodeInputs(batch.req_indices, batch.longest, 1, batch=batch), None
    rows, tree, scores = draft.shape.num_tokens, draft.tree, draft.scores
    selected = None if context.graphs.uses_graphs else within
    inputs = DecodeInputs(
        batch.req_indices, batch.longest, rows, draft.tokens, batch=batch, verify=selected
    )
    if tree is not None:
        inputs = inputs._replace(depths=tree.depths, mask=tree.ancestry)
    if scores is None:
        return inputs, within
    if within is not None:
        scores = scores.masked_fill(within.left_out < 0, -torch.inf)
    size, verify_tokens = context.graphs.padded_batch(batch.size), draft.shape.verify_tokens
    verified = divide(scores, size, verify_tokens)
    inputs = inputs._replace(verified=verified, verify_tokens=verify_tokens)
    verify = inputs.divided_rows()
    if within is not None:  # rows that are left over may belong to tokens that may not be accepted
        verify = replace(verify, left_out=verify.left_out[: batch.size] | within.left_out)
    return inputs._replace(verify=verify), verify


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
        return None, ops.verify_chain(tokens, draft.tokens)
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
    accepted: Tensor,
    path: Tensor | None,
) -> None:
    """Keep what belongs to the accepted path, whose tokens are `tokens` [B, path_length] i64."""
    if context.states is not None and tokens.shape[1] > 1:
        context.states.keep(batch.req_indices, path, accepted)
    if path is not None:
        # The path's rows move to the front, where a chain would have put them.
        moves = context.table.pages, batch.req_indices, batch.lengths, path
        context.pool.compact(*moves)
        if context.routed is not None:
            context.routed.compact(*moves)
    context.table.append(batch, tokens, accepted)


def _feed_draft(
    context: ModelContext,
    batch: DecodeBatch,
    staged: StagedDecode,
    path: Tensor | None,
    hidden: Tensor | None,
    width: int,
) -> None:
    """Keep the aux hidden states of the accepted path, which is at most `width` nodes long.

    Args:
        hidden: [B, N, width], of every node; None if the draft reads none.
    """
    drafter = context.drafter
    if drafter is None:
        return
    if not staged.feeds_draft:
        drafter.skip(batch.host_req_indices)
        return
    most = tuple([min(count, width) for count in staged.num_verify_rows])
    kept = None if hidden is None else gather_accepted(context.ops, hidden, path)
    drafter.update_after_verify(batch, most, kept)
