"""A runner on padded buffers gives what the pass gives, and writes where the pass writes."""

import pytest
import torch

from specdecode_engine.forward.passes import PassInputs, PassOutputs
from specdecode_engine.graph_plan.passes import PassKind, PassShape

CHAIN = PassShape(PassKind.VERIFY, 4, 3)
TREE = PassShape(PassKind.VERIFY, 4, 5, seen=5)
PARENTS = (0, 0, 0, 1, 3)


def inputs_of(bench, shape: PassShape, size: int) -> PassInputs:
    return bench.tree(size, PARENTS) if shape.seen else bench.chain(size, shape.rows)


def same(first: PassOutputs, second: PassOutputs) -> bool:
    assert first.hidden is not None
    assert second.hidden is not None
    return torch.equal(first.logits, second.logits) and torch.equal(first.hidden, second.hidden)


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_runner_equals_the_pass_bit_for_bit(bench, shape: PassShape, size: int) -> None:
    runner = bench.runner(shape, PassShape(PassKind.VERIFY, 6, 9, seen=9))
    inputs = inputs_of(bench, shape, size)
    plain = bench.function(inputs)
    assert same(runner.run(inputs), plain)
    assert plain.logits.shape == (size * shape.rows, 97)


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_nothing_of_an_earlier_larger_batch_is_left(bench, shape: PassShape) -> None:
    runner = bench.runner(shape)
    runner.run(inputs_of(bench, shape, 4))
    before = bench.cells()
    inputs = inputs_of(bench, shape, 1)
    outputs = runner.run(inputs)
    changed = changed_rows(before, bench.cells())
    assert changed <= {0, *inputs.kv_rows.tolist()}
    assert same(outputs, bench.function(inputs))


def changed_rows(before: torch.Tensor, after: torch.Tensor) -> set[int]:
    is_same = (before == after) | (before.isnan() & after.isnan())
    return set((~is_same.all(dim=1)).nonzero()[:, 0].tolist())


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("size", [1, 3])
def test_padding_writes_to_page_0_only(bench, shape: PassShape, size: int) -> None:
    runner = bench.runner(shape)
    inputs = inputs_of(bench, shape, size)
    before = bench.cells()
    runner.run(inputs)
    changed = changed_rows(before, bench.cells())
    own = set(inputs.kv_rows.tolist())
    assert own <= changed
    assert changed - own <= {0}


def test_making_a_runner_touches_nobodys_rows(bench) -> None:
    first = bench.runner(CHAIN, TREE)
    first.run(bench.chain(4, 3))
    before = bench.cells()
    type(first)(TREE, bench.function, first._inputs, first._outputs)
    assert changed_rows(before, bench.cells()) <= {0}


def test_outputs_are_views_of_one_place_and_the_next_run_overwrites_them(bench) -> None:
    runner = bench.runner(CHAIN)
    first = runner.run(bench.chain(2, 3))
    kept = first.logits.clone()
    second = runner.run(bench.chain(4, 3))
    assert first.logits.data_ptr() == second.logits.data_ptr()
    assert second.logits.shape == (12, 97)
    assert torch.equal(first.logits, kept)  # the same sequences stand first again


def test_all_passes_share_page_tables_of_one_width(bench) -> None:
    """So that a batch computes the same at every depth."""
    inputs, outputs = bench.buffers(CHAIN, TREE)
    shapes = [CHAIN, TREE, PassShape(PassKind.VERIFY, 1, 1), PassShape(PassKind.VERIFY, 2, 4)]
    layouts = [inputs.view(shape).layout for shape in shapes]
    assert len({layout.page_table.data_ptr() for layout in layouts}) == 1
    assert {layout.page_table.shape[1] for layout in layouts} == {8}
    assert {layout.max_visible for layout in layouts} == {32}
    assert len({outputs.view(shape, 1).logits.data_ptr() for shape in shapes}) == 1


def test_the_same_batch_computes_the_same_at_every_depth(bench) -> None:
    logits = []
    for rows in (1, 2, 4, 8):
        runner = bench.runner(PassShape(PassKind.VERIFY, 4, rows))
        logits.append(runner.run(bench.chain(3, rows)).logits.view(3, rows, -1)[:, 0])
    assert all(torch.equal(logits[0], other) for other in logits[1:])


def test_a_layout_is_copied_once_while_it_stays(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of a round share theirs; a new one of the same values is copied again."""
    runner = bench.runner(CHAIN)
    inputs, other = bench.chain(2, 3), bench.chain(2, 3)
    runner.run(inputs)
    runner._inputs._page_table.fill_(-1)  # whoever copies again mends it
    runner._inputs.load(CHAIN, inputs)
    assert (runner._inputs._page_table == -1).all()
    runner._inputs.load(CHAIN, other)
    assert not (runner._inputs._page_table == -1)[:2, :2].any()


def test_buffers_say_what_they_hold(bench) -> None:
    inputs, outputs = bench.buffers(CHAIN)
    for smaller in (CHAIN, PassShape(PassKind.VERIFY, 2, 6), PassShape(PassKind.VERIFY, 4, 1)):
        assert inputs.holds(smaller)
        assert outputs.holds(smaller)
    for larger in (PassShape(PassKind.VERIFY, 5, 1), PassShape(PassKind.VERIFY, 2, 7), TREE):
        assert not inputs.holds(larger) or not outputs.holds(larger)


def test_what_a_graph_holds_asks_the_host_for_nothing(bench) -> None:
    """Full width, and as many rows for each sequence, so that where they begin is no tensor."""
    buffers, _ = bench.buffers(CHAIN, TREE)
    for shape in (CHAIN, TREE):
        layout = buffers.view(shape).layout
        assert layout.queries_each == shape.rows
        assert layout.page_table.shape[1] == bench.table.pages.shape[1]
        assert layout.max_visible == layout.page_table.shape[1] * layout.page_size
