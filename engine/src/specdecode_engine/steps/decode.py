"""Decoding: draft before the target's forward, accept and commit after it."""

from dataclasses import dataclass

from torch import Tensor

from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request_table import DecodeBatch
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.model.forward import ForwardInputs, ForwardOutputs
from specdecode_engine.sampling.grammar_masks import DraftOnHost
from specdecode_engine.steps.in_flight import InFlightStep
from specdecode_engine.steps.logprobs import select_logprobs
from specdecode_engine.steps.model_context import ModelContext
from specdecode_engine.steps.verify import (
    VerifyResult,
    accept,
    compact_kv,
    gather_accepted,
    lay_out_nodes,
)


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """The rows that a step verifies: each sequence's bonus token and its draft."""

    sequences: tuple[Sequence, ...]
    batch: DecodeBatch
    draft: Draft | None  # None for plain decoding
    nodes: ForwardInputs
    on_host: DraftOnHost | None  # copy of the draft for grammars


def draft_rows(
    context: ModelContext, sequences: tuple[Sequence, ...], shape: DraftShape
) -> DecodeRows:
    """Draft for every sequence and collect the inputs of the forward that verifies the drafts."""
    slots = [sequence.slot for sequence in sequences if sequence.slot is not None]
    batch = context.table.decode_batch(slots, [sequence.most_computed for sequence in sequences])
    draft = None
    if context.drafter is not None and shape.num_steps:
        draft = context.drafter.draft(batch, shape)
    nodes = lay_out_nodes(context, batch, draft)
    on_host = context.sampler.grammars.ship(list(batch.slot_ids), draft)
    return DecodeRows(sequences, batch, draft, nodes, on_host)


def finish_decode(
    context: ModelContext, decode: DecodeRows, outputs: ForwardOutputs, step: InFlightStep
) -> None:
    """Continue after the target's forward: each sequence gets 1 to path_length tokens.

    Args:
        outputs: of the nodes.
        step: receives what the host will read.
    """
    draft = decode.draft
    positions = decode.nodes.positions
    result = accept(context, decode.batch, draft, decode.on_host, positions, outputs)
    tokens = _commit(context, decode.batch, result)
    tops = [sequence.request.sampling.logprobs for sequence in decode.sequences]
    logprobs = select_logprobs(
        gather_accepted(context.ops, result.logits, result.path), tokens, tops
    )
    drafted = draft.shape.num_tokens - 1 if draft else 0
    step.send_tokens(decode.sequences, tokens, result.accepted, drafted, logprobs)


def _commit(context: ModelContext, batch: DecodeBatch, result: VerifyResult) -> Tensor:
    """Keep what belongs to the accepted path; return its tokens [B, path_length] i64."""
    tokens = gather_accepted(context.ops, result.tokens, result.path)
    if result.path is not None:
        compact_kv(context.pool, context.table, batch, result.path)
    committed = result.accepted + 1
    context.table.append(batch, tokens, committed)
    context.sampler.commit(list(batch.slot_ids), tokens, committed)
    if context.drafter is not None:
        aux = result.aux_hidden_states
        kept = None if aux is None else gather_accepted(context.ops, aux, result.path)
        context.drafter.update_after_verify(batch, tokens.shape[1], kept)
    return tokens
