"""A mixed round: prompt chunks and a decode round's chains in one target pass.

The weights are then read once for both, where two rounds would read them twice. Drafting and
everything behind the pass stays what it is in rounds of their own, and a row does not depend on
the rows beside it; so answers do not change.
"""

from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_engine.draft_shape import DraftShape
from specdecode_engine.forward.kv_view import PagedView
from specdecode_engine.forward.llama import Hidden
from specdecode_engine.forward.passes import PassInputs, PassOutputs
from specdecode_engine.rounds.decode import gather, propose, take_up_verdict
from specdecode_engine.rounds.extend import ChunkRows, lay_out_chunks, take_up_chunks
from specdecode_engine.rounds.parts import Parts
from specdecode_engine.rounds.pending import PendingRound
from specdecode_engine.rounds.verify import judge, lay_out_nodes
from specdecode_engine.sequence import Sequence
from specdecode_engine.step import Chunk
from specdecode_kernels import AttentionLayout


def launch_mixed_round(
    parts: Parts,
    chunks: tuple[Chunk, ...],
    sequences: tuple[Sequence, ...],
    shape: DraftShape,
) -> tuple[PendingRound | None, PendingRound]:
    """Compute the chunks and decode the sequences; `shape` drafts chains.

    Returns:
        What `launch_extend_round` and `launch_decode_round` would.
    """
    batch = gather(parts, sequences)
    draft = propose(parts, batch, shape)
    extend, nodes = lay_out_chunks(parts, chunks), lay_out_nodes(parts, batch, draft)
    on_host = parts.sampler.grammars.ship(list(batch.slot_ids), draft)
    hidden = _run(parts, extend, nodes)
    split = len(extend.ids)
    of_chunks, of_nodes = _rows(hidden, slice(split)), _rows(hidden, slice(split, None))
    ending = len(extend.last_rows)
    wanted = torch.cat([of_chunks.last[extend.last_rows], of_nodes.last])
    logits = parts.target.logits(wanted)
    first = take_up_chunks(parts, extend, of_chunks, logits[:ending] if ending else None)
    outputs = PassOutputs(logits[ending:], parts.features_of(of_nodes))
    verdict = judge(parts, batch, draft, on_host, nodes.positions, outputs)
    return first, take_up_verdict(parts, sequences, batch, draft, verdict)


def _run(parts: Parts, extend: ChunkRows, nodes: PassInputs) -> Hidden:
    """Run the target over the chunks' rows and the nodes behind them."""
    rows = extend.rows
    assert nodes.kv_rows is not None
    kv_rows = torch.cat([rows.kv_rows, nodes.kv_rows])
    view = PagedView(parts.pool, kv_rows, join(rows.layout, nodes.layout))
    ids = torch.cat([extend.ids, nodes.ids])
    positions = torch.cat([rows.positions, nodes.positions])
    return parts.target.forward(ids, positions, view, parts.capture.layers)


def join(one: AttentionLayout, other: AttentionLayout) -> AttentionLayout:
    """Lay out the requests of both, one behind the other."""
    lens = (*one.query_lens, *other.query_lens)
    tables = one.page_table, other.page_table
    width = max(table.shape[1] for table in tables)
    return AttentionLayout(
        page_table=torch.cat([_widened(table, width) for table in tables]),
        page_size=one.page_size,
        query_lens=lens,
        visible=torch.cat([one.visible, other.visible]),
        max_visible=max(one.max_visible, other.max_visible),
        query_starts=torch.tensor([0, *accumulate(lens)], device=one.visible.device),
    )


def _widened(table: Tensor, width: int) -> Tensor:
    return functional.pad(table, (0, width - table.shape[1]))


def _rows(hidden: Hidden, rows: slice) -> Hidden:
    captured = hidden.captured
    return Hidden(hidden.last[rows], None if captured is None else captured[rows])
