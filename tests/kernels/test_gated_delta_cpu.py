"""The gated delta rule in C equals the reference, and a token's bits depend on its text alone."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from specdecode_kernels import TORCH
from specdecode_kernels.testing import backend_of, checked
from specdecode_kernels.testing.gated_delta import (
    ancestry_of,
    copied,
    delta_rows,
)
from tests.kernels.delta_texts import (
    LAYER,
    OTHERS,
    SHAPES,
    Text,
    assert_cuts_do_not_matter,
    assert_drafts_are_kept_like_plain_tokens,
    assert_paths_of_a_tree_are_chains,
    draw_tree,
    form_of,
)
from tests.kernels.launched import launches

CPU = torch.device("cpu")
TYPES = (torch.float32, torch.bfloat16)
TOLERANCES = {torch.float32: (3e-5, 3e-5), torch.bfloat16: (1e-2, 1e-2)}

each_type = pytest.mark.parametrize("dtype", TYPES, ids=str)
each_shape = pytest.mark.parametrize("shape", [*SHAPES, *OTHERS])


@pytest.fixture(autouse=True)
def counts() -> Iterator[Counter[str]]:
    with launches() as counted:
        yield counted
        assert counted["gated_delta"], "torch has computed"


def text_of(shape: str, dtype: torch.dtype, seed: int, tokens: int = 43) -> Text:
    ops = checked(backend_of("cpu", CPU, dtype))
    return Text.draw(ops, form_of(shape, dtype), seed, CPU, tokens)


@each_type
@each_shape
def test_a_text_does_not_depend_on_its_cuts(shape: str, dtype: torch.dtype) -> None:
    assert_cuts_do_not_matter(text_of(shape, dtype, 1), 2)


@each_type
@each_shape
def test_accepted_chains_are_kept_like_plain_tokens(shape: str, dtype: torch.dtype) -> None:
    assert_drafts_are_kept_like_plain_tokens(text_of(shape, dtype, 3), 4)


@each_type
@each_shape
@pytest.mark.parametrize("seed", range(4))
def test_every_path_of_a_tree_is_a_chain(shape: str, dtype: torch.dtype, seed: int) -> None:
    assert_paths_of_a_tree_are_chains(text_of(shape, dtype, seed), seed)


@each_type
@each_shape
@pytest.mark.parametrize("seed", range(3))
def test_it_is_near_the_reference(shape: str, dtype: torch.dtype, seed: int) -> None:
    """Of chunks next to drafts, chains or trees, with nothing known of the other slots."""
    rng, text = random.Random(seed), text_of(shape, dtype, seed)
    form, is_tree = text.form, seed == 1
    state = form.draw_state(seed)
    state.matrices[:, 0], state.inputs[:, 0] = torch.nan, torch.nan
    batch = 3
    chunks = 0 if is_tree else rng.randrange(batch + 1)
    sizes = [rng.randint(0, 9) if at < chunks else form.nodes for at in range(batch)]
    trees = [draw_tree(rng, form.nodes) for _ in range(batch)]
    rows = delta_rows([2, 1, 3], sizes, chunks, ancestry_of(trees) if is_tree else None)
    tokens = torch.randint(len(text.u), (sum(sizes),))
    of_torch, theirs = text._replace(ops=TORCH), copied(state)
    atol, rtol = TOLERANCES[dtype]
    found, wanted = text.forward(state, tokens, rows), of_torch.forward(theirs, tokens, rows)
    torch.testing.assert_close(found, wanted, atol=atol, rtol=rtol)
    torch.testing.assert_close(
        state.matrices, theirs.matrices, atol=3e-5, rtol=3e-5, equal_nan=True
    )
    for name in ("inputs", "drafted", "drafted_gates"):
        own, other = getattr(state, name)[LAYER], getattr(theirs, name)[LAYER]
        assert torch.equal(own.nan_to_num(7), other.nan_to_num(7))


@each_type
def test_all_layers_keep_their_drafts_at_once(dtype: torch.dtype, counts: Counter[str]) -> None:
    text = text_of("shared k heads", dtype, 5)
    state, plain = text.form.draw_state(6), text.form.draw_state(6)
    rows, kept = delta_rows([3, 1], [5, 5], 0), delta_rows([3, 1], [4, 2], 2)
    u, gates = text.form.draw_inputs(20, 7)
    taken = torch.tensor([0, 1, 2, 3, 5, 6])
    for layer in range(text.form.layers):
        first = slice(10 * layer, 10 * layer + 10)
        text.ops.gated_delta(u[first], gates[first], text.params, state, layer, rows)
        some = u[first][taken], gates[first][taken]
        text.ops.gated_delta(*some, text.params, plain, layer, kept)
    text.ops.keep_drafted(text.params, state, torch.tensor([3, 1]), None, torch.tensor([3, 1]))
    assert counts["keep_drafted"] == 1
    assert torch.equal(state.inputs, plain.inputs)
    assert torch.equal(state.matrices, plain.matrices)


@each_type
def test_padding_leaves_other_requests_alone(dtype: torch.dtype) -> None:
    """Padded requests share slot 0, in which there may be anything; others have no rows."""
    text = text_of("parts of vectors", dtype, 8)
    state = text.form.draw_state(9)
    plain = copied(state)
    state.matrices[:, 0], state.inputs[:, 0] = torch.nan, torch.nan
    untouched = state.matrices[:, 2:].clone()
    tokens = torch.arange(4)
    rows = delta_rows([1, 0, 2, 0], [4, 4, 0, 4], 0)
    y = text.forward(state, tokens.repeat(3), rows)
    text.ops.keep_drafted(
        text.params, state, torch.tensor([1, 0, 2, 0]), None, torch.tensor([3, 3, 0, 0])
    )
    assert torch.equal(y[:4], text.read(plain, 1, 0, 4))
    assert torch.equal(state.matrices[LAYER, 1], plain.matrices[LAYER, 1])
    assert torch.equal(state.matrices[:, 2:], untouched)
    none = text.ops.gated_delta(
        text.u[:0], text.gates[:0], text.params, state, LAYER, delta_rows([], [], 0)
    )
    assert none.shape == (0, text.form.shape.v_heads, text.form.shape.v_dim)
