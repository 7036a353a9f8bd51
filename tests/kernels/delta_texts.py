"""The same tokens of a text give the same bits in any cut, draft and batch: for every backend."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from specdecode_kernels import Backend, DeltaParams, DeltaShape, DeltaState
from specdecode_kernels.testing.gated_delta import DeltaForm, ancestry_of, copied, delta_rows

SHAPES = {
    "one head": DeltaShape(1, 1, 16, 16, 4),
    "shared k heads": DeltaShape(2, 4, 32, 64, 4),
    "parts of vectors": DeltaShape(2, 6, 20, 37, 3),
    "wide heads": DeltaShape(1, 2, 128, 128, 4),
    "many v heads": DeltaShape(1, 17, 16, 80, 2),
    "no convolution": DeltaShape(3, 3, 7, 5, 1),
}
OTHERS = {
    "short convolution": DeltaForm(DeltaShape.of_convolution(37, 3)),
    "long convolution": DeltaForm(DeltaShape.of_convolution(128, 5), has_bias=True),
}
TOKENS = 43
LAYER = 1


def form_of(shape: str, dtype: torch.dtype = torch.float32) -> DeltaForm:
    """Return what arguments of one of these shapes are drawn for."""
    return replace(OTHERS.get(shape) or DeltaForm(SHAPES[shape]), dtype=dtype)


class Text(NamedTuple):
    """Inputs of a text's tokens, and what computes them."""

    ops: Backend
    form: DeltaForm
    params: DeltaParams
    u: Tensor  # [tokens, channels]
    gates: Tensor  # [tokens, gates]

    @classmethod
    def draw(
        cls, ops: Backend, form: DeltaForm, seed: int, device: torch.device, tokens: int = TOKENS
    ) -> "Text":
        u, gates = form.draw_inputs(tokens, seed, device)
        return cls(ops, form, form.draw_params(seed, device), u, gates)

    def read(self, state: DeltaState, slot: int, first: int, end: int) -> Tensor:
        """Read tokens that are kept; returns their y."""
        rows = delta_rows([slot], [end - first], 1, device=self.u.device)
        return self.forward(state, torch.arange(first, end), rows)

    def forward(self, state: DeltaState, tokens: Tensor, rows: object) -> Tensor:
        places = tokens.to(self.u.device)
        inputs = self.u[places], self.gates[places]
        return self.ops.gated_delta(*inputs, self.params, state, LAYER, rows)  # type: ignore[arg-type]


def assert_same_state(found: DeltaState, wanted: DeltaState, slot: int, other: int) -> None:
    """Slot `slot` of one state holds what `other` of another one does."""
    assert torch.equal(found.inputs[LAYER, slot], wanted.inputs[LAYER, other])
    assert torch.equal(found.matrices[LAYER, slot], wanted.matrices[LAYER, other])


def assert_cuts_do_not_matter(text: Text, seed: int, cuts: int = 6) -> None:
    """A text in one forward, token by token, and cut anywhere next to other requests."""
    rng, before = random.Random(seed), text.form.draw_state(seed, text.u.device)
    whole = copied(before)
    wanted = text.read(whole, 1, 0, len(text.u))
    assert wanted.isfinite().all()
    single = copied(before)
    alone = [text.read(single, 1, at, at + 1) for at in range(len(text.u))]
    assert torch.equal(torch.cat(alone), wanted)
    assert_same_state(single, whole, 1, 1)
    for _ in range(cuts):
        state, places = copied(before), sorted(rng.sample(range(1, len(text.u)), 4))
        parts = [
            _read_next_to_others(text, state, first, end, rng)
            for first, end in zip([0, *places], [*places, len(text.u)], strict=True)
        ]
        assert torch.equal(torch.cat(parts), wanted)
        assert_same_state(state, whole, 1, 1)


def _read_next_to_others(
    text: Text, state: DeltaState, first: int, end: int, rng: random.Random
) -> Tensor:
    """Read tokens with slot 1 between chunks of slots 2 and 3, one of which may be empty."""
    others = [rng.randrange(5) for _ in range(2)]
    counts = [others[0], end - first, others[1]]
    rows = delta_rows([2, 1, 3], counts, 3, device=text.u.device)
    near = [torch.randint(len(text.u), (count,)) for count in others]
    y = text.forward(state, torch.cat([near[0], torch.arange(first, end), near[1]]), rows)
    return y[others[0] : others[0] + end - first]


def assert_drafts_are_kept_like_plain_tokens(text: Text, seed: int) -> None:
    """Chains of any length, of which any number is accepted, two requests at once."""
    rng, state = random.Random(seed), text.form.draw_state(seed, text.u.device)
    plain = copied(state)
    wanted = torch.cat([text.read(plain, 1, at, at + 1) for at in range(len(text.u))])
    plain, at, found = copied(state), 0, []
    while at < len(text.u):
        count = min(rng.randint(1, text.form.nodes), len(text.u) - at)
        accepted, chunk = rng.randrange(count), rng.randrange(4)
        tokens = torch.arange(at, at + count)
        rows = delta_rows([3, 2, 1], [chunk, count, count], 1, device=text.u.device)
        y = text.forward(state, torch.cat([torch.arange(chunk), tokens, tokens]), rows)[chunk:]
        found.append(y[count : count + accepted + 1])
        _keep(text, state, [2, 1], None, [0, accepted])
        text.read(plain, 1, at, at + accepted + 1)
        text.read(plain, 2, at, at + 1)
        for slot in (1, 2):
            assert_same_state(state, plain, slot, slot)
        at += accepted + 1
    assert torch.equal(torch.cat(found), wanted)


def assert_paths_of_a_tree_are_chains(text: Text, seed: int) -> None:
    """Every node of random trees, and the path that is kept, against its tokens one by one."""
    rng, before = random.Random(seed), text.form.draw_state(seed, text.u.device)
    trees = [draw_tree(rng, text.form.nodes) for _ in range(2)]
    tokens = [torch.tensor(rng.sample(range(len(text.u)), text.form.nodes)) for _ in trees]
    counts, state = [len(one) for one in tokens], copied(before)
    rows = delta_rows([2, 1], counts, 0, ancestry_of(trees, text.u.device), text.u.device)
    y = text.forward(state, torch.cat(tokens), rows).split(counts)
    paths, accepted, kept = [], [], copied(before)
    for slot, tree, own, found in zip((2, 1), trees, tokens, y, strict=True):
        for node in range(len(tree)):
            after = copied(before)
            wanted = [_read_one(text, after, slot, own[each]) for each in path_to(tree, node)]
            assert torch.equal(found[node], wanted[-1][0])
        path = path_to(tree, rng.randrange(len(tree)))
        for each in path:
            _read_one(text, kept, slot, own[each])
        paths.append(path + [path[-1]] * (len(tree) - len(path)))
        accepted.append(len(path) - 1)
    _keep(text, state, [2, 1], paths, accepted)
    for slot in range(text.form.slots + 1):
        assert_same_state(state, kept, slot, slot)


def draw_tree(rng: random.Random, nodes: int) -> list[int]:
    """Draw the parents of nodes, each before its node."""
    return [0, *(rng.randrange(node) for node in range(1, nodes))]


def path_to(tree: Sequence[int], node: int) -> list[int]:
    path = [node]
    while path[0]:
        path.insert(0, tree[path[0]])
    return path


def _read_one(text: Text, state: DeltaState, slot: int, token: Tensor) -> Tensor:
    rows = delta_rows([slot], [1], 1, device=text.u.device)
    return text.forward(state, token[None], rows)


def _keep(
    text: Text,
    state: DeltaState,
    slots: list[int],
    paths: list[list[int]] | None,
    accepted: list[int],
) -> None:
    """Fold accepted nodes into the state of the layer under test.

    Other layers have stored no draft; their states take what there is.
    """
    device = text.u.device
    path = None if paths is None else torch.tensor(paths, device=device)
    given = torch.tensor(slots, device=device), path, torch.tensor(accepted, device=device)
    text.ops.keep_drafted(text.params, state, *given)
