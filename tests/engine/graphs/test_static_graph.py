"""A static graph on padded buffers equals the eager forward, and writes where that writes."""

import pytest
import torch

from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.shapes import ForwardKind, ForwardShape
from specdecode_engine.model.forward import ForwardOutputs
from tests.engine.graphs.conftest import PAGE_SIZE

CHAIN = ForwardShape(ForwardKind.VERIFY, 4, 3)
TREE = ForwardShape(ForwardKind.VERIFY, 4, 5, seen=5)
PARENTS = (0, 0, 0, 1, 3)
PAGE_0 = set(range(PAGE_SIZE))


def inputs_of(bench, shape: ForwardShape, size: int) -> DecodeInputs:
    inputs = bench.tree(size, PARENTS) if shape.seen else bench.chain(size, shape.rows)
    assert isinstance(inputs, DecodeInputs)
    return inputs


def same(first: ForwardOutputs, second: ForwardOutputs) -> bool:
    assert first.hidden is not None
    assert second.hidden is not None
    return torch.equal(first.logits, second.logits) and torch.equal(first.hidden, second.hidden)


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_graph_equals_the_eager_forward_bit_for_bit(
    bench, shape: ForwardShape, size: int
) -> None:
    graph = bench.graph(shape, ForwardShape(ForwardKind.VERIFY, 6, 9, seen=9))
    inputs = inputs_of(bench, shape, size)
    plain = bench.function(inputs)
    assert same(graph.run(inputs), plain)
    assert plain.logits.shape == (size * shape.rows, 97)


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_nothing_of_an_earlier_larger_batch_is_left(bench, shape: ForwardShape) -> None:
    graph = bench.graph(shape)
    graph.run(inputs_of(bench, shape, 4))
    before = bench.cells()
    inputs = inputs_of(bench, shape, 1)
    outputs = graph.run(inputs)
    changed = changed_rows(before, bench.cells())
    assert changed <= PAGE_0 | bench.rows_of(inputs)
    assert same(outputs, bench.function(inputs))


def changed_rows(before: torch.Tensor, after: torch.Tensor) -> set[int]:
    is_same = (before == after) | (before.isnan() & after.isnan())
    return set((~is_same.all(dim=1)).nonzero()[:, 0].tolist())


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("size", [1, 3])
def test_padding_writes_to_page_0_only(bench, shape: ForwardShape, size: int) -> None:
    graph = bench.graph(shape)
    inputs = inputs_of(bench, shape, size)
    before = bench.cells()
    graph.run(inputs)
    changed = changed_rows(before, bench.cells())
    own = bench.rows_of(inputs)
    assert own <= changed
    assert changed - own <= PAGE_0


def test_making_a_graph_touches_nobodys_rows(bench) -> None:
    first = bench.graph(CHAIN, TREE)
    first.run(bench.chain(4, 3))
    before = bench.cells()
    type(first)(TREE, bench.function, first._buffers)
    assert changed_rows(before, bench.cells()) <= PAGE_0


def test_outputs_are_views_of_one_place_and_the_next_run_overwrites_them(bench) -> None:
    graph = bench.graph(CHAIN)
    first = graph.run(bench.chain(2, 3))
    kept = first.logits.clone()
    second = graph.run(bench.chain(4, 3))
    assert first.logits.data_ptr() == second.logits.data_ptr()
    assert second.logits.shape == (12, 97)
    assert torch.equal(first.logits, kept)  # the same sequences stand first again


def test_all_graphs_have_page_tables_of_one_width(bench) -> None:
    """So that a batch computes the same at every num_steps; nothing is read on the host."""
    buffers = bench.buffers(CHAIN, TREE)
    shapes = [
        CHAIN,
        TREE,
        ForwardShape(ForwardKind.VERIFY, 1, 1),
        ForwardShape(ForwardKind.VERIFY, 2, 4),
    ]
    layouts = [bench.function.lay_out(buffers.inputs.view(shape)).layout for shape in shapes]
    assert [layout.uniform_qo_len for layout in layouts] == [shape.rows for shape in shapes]
    assert {layout.page_table.shape[1] for layout in layouts} == {8}
    assert {layout.max_kv_len for layout in layouts} == {32}
    assert len({buffers.outputs.view(shape, 1).logits.data_ptr() for shape in shapes}) == 1


def test_the_same_batch_computes_the_same_at_every_num_steps(bench) -> None:
    logits = []
    for rows in (1, 2, 4, 8):
        graph = bench.graph(ForwardShape(ForwardKind.VERIFY, 4, rows))
        logits.append(graph.run(bench.chain(3, rows)).logits.view(3, rows, -1)[:, 0])
    assert all(torch.equal(logits[0], other) for other in logits[1:])


def test_a_batch_is_copied_once_while_it_stays(bench) -> None:
    """The forwards of a step share theirs; a new one of the same requests is copied again."""
    graph = bench.graph(CHAIN)
    inputs, other = bench.chain(2, 3), bench.chain(2, 3)
    graph.run(inputs)
    buffers = graph._buffers.inputs
    buffers._req_indices.fill_(-1)  # copying again would repair it
    buffers.load(CHAIN, inputs)
    assert (buffers._req_indices == -1).all()
    buffers.load(CHAIN, other)
    assert buffers._req_indices.tolist() == [1, 2, 0, 0]


def test_a_batch_is_padded_again_for_a_larger_graph(bench) -> None:
    small = ForwardShape(ForwardKind.VERIFY, 2, 3)
    buffers, inputs = bench.buffers(CHAIN).inputs, bench.chain(2, 3)
    buffers._req_indices.fill_(-1)
    for shape, wanted in ((small, [1, 2, -1, -1]), (CHAIN, [1, 2, 0, 0])):
        buffers.load(shape, inputs)
        assert buffers._req_indices.tolist() == wanted


def test_bytes_are_known_before_buffers_are_allocated(bench) -> None:
    for shapes in ((), (CHAIN,), (CHAIN, TREE)):
        assert bench.spec().num_bytes(shapes) == bench.buffers(*shapes).num_bytes
    assert bench.spec().num_bytes(()) == 0


def test_buffers_hold_their_shapes_and_smaller_ones(bench) -> None:
    buffers = bench.buffers(CHAIN)
    for smaller in (
        CHAIN,
        ForwardShape(ForwardKind.VERIFY, 2, 6),
        ForwardShape(ForwardKind.VERIFY, 4, 1),
    ):
        assert buffers.inputs.holds(smaller)
        assert buffers.outputs.holds(smaller)
        assert buffers.holds(smaller)
    for larger in (
        ForwardShape(ForwardKind.VERIFY, 5, 1),
        ForwardShape(ForwardKind.VERIFY, 2, 7),
        TREE,
    ):
        assert not buffers.holds(larger)
