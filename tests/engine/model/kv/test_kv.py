"""Pool, scratch and views: a drafted chain in the scratch equals the same tokens in pages."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from checks.lossless.poison import poison
from specdecode_engine.model.kv.draft_scratch import DraftScratch
from specdecode_engine.model.kv.kv_cache import KVCache, kv_bytes
from specdecode_engine.model.kv.kv_views import ScratchView
from specdecode_engine.model.kv.layer_map import LayerMap, LayerShape
from specdecode_engine.model.target.config import AuxHiddenStates
from specdecode_engine.model.target.llama import Llama
from specdecode_kernels import DEFAULT_ATTENTION, AttentionMetadata

CPU = torch.device("cpu")
TWO_LAYERS = LayerMap.uniform(2, 1, 6)
WINDOWED = LayerShape(kv_heads=2, k_head_dim=4, v_head_dim=4, sliding_window=3)
FULL = LayerShape(kv_heads=1, k_head_dim=8, v_head_dim=6)
MIXED = LayerMap.build([WINDOWED, FULL, WINDOWED, WINDOWED, FULL], [0, 1, 2, 2, 1])
"""As in Gemma 4: head sizes by type, and two layers at the end that share."""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_a_pool_is_zero_until_a_test_poisons_it(dtype: torch.dtype) -> None:
    pool = KVCache(TWO_LAYERS, 3, 4, dtype, CPU)
    (group,) = pool.groups
    assert group.k.shape == group.v.shape == (2, 12, 1, 6)
    assert not group.k.float().any()
    assert not group.v.float().any()
    poison(pool)
    assert bool(group.k.float().isnan().all())
    assert bool(group.v.float().isnan().all())


@pytest.mark.parametrize("layers", ["one group", "mixed"])
def test_bytes_are_what_is_allocated(layers: str) -> None:
    layer_map = TWO_LAYERS if layers == "one group" else MIXED
    pool = KVCache(layer_map, 3, 4, torch.bfloat16, CPU)
    storages = {part.untyped_storage() for group in pool.groups for part in (group.k, group.v)}
    assert kv_bytes(layer_map, 3 * 4, torch.bfloat16) == pool.num_bytes
    assert sum(storage.nbytes() for storage in storages) == pool.num_bytes


def test_a_pool_needs_a_page_besides_the_padding_page() -> None:
    with pytest.raises(ValueError, match="a pool of 1 pages"):
        KVCache(TWO_LAYERS, 1, 4, torch.float32, CPU)


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_chain_in_the_scratch_equals_the_pages(
    tmp_path: Path,
    config: dict[str, object],
    tensors: dict[str, Tensor],
    write: Any,
    texts: Any,
    page_size: int,
) -> None:
    model = Llama.load(write(tmp_path, config, tensors), dtype=torch.float64, device=CPU)
    lengths, steps = [7, 3], 4
    ids = torch.randint(0, 31, (2, 11))
    prefix = [(text, 0, length) for text, length in enumerate(lengths)]
    prefix_ids = torch.cat([ids[text, :end] for text, _, end in prefix])
    cached, paged = (texts.make(model.config, 2, 11, page_size, dtype=torch.float64) for _ in "ab")
    for target in (cached, paged):
        model.forward(prefix_ids, *target.view(*prefix))
    (group,) = cached.pool.groups
    before = group.k.clone()
    scratch = DraftScratch(model.config.layer_map, 3, steps, torch.float64, CPU)
    poison(scratch)
    for step in range(steps):
        ends = [length + step for length in lengths]
        tokens = torch.stack([ids[text, end] for text, end in enumerate(ends)])
        view = ScratchView(cached.pool, scratch, step, cached.prefix(lengths))
        drafted, _ = model.forward(tokens, torch.tensor(ends), view)
        spans = [(text, end, end + 1) for text, end in enumerate(ends)]
        torch.testing.assert_close(drafted, model.forward(tokens, *paged.view(*spans))[0])
    torch.testing.assert_close(group.k, before, equal_nan=True, rtol=0, atol=0)


def test_a_batch_without_rows_runs(
    tmp_path: Path, config: dict[str, object], tensors: dict[str, Tensor], write: Any, texts: Any
) -> None:
    model = Llama.load(write(tmp_path, config, tensors), device=CPU)
    nothing = torch.zeros(0, dtype=torch.int64)
    _, view = texts.make(model.config, 1, 4, 4).view((0, 2, 2))
    assert model.logits(model.forward(nothing, nothing, view)[0]).shape == (0, 31)


@pytest.mark.parametrize("layers", [(4,), (-2,), (0, 9)])
def test_aux_hidden_states_of_a_layer_that_is_not_there_are_refused(
    tmp_path: Path,
    config: dict[str, object],
    tensors: dict[str, Tensor],
    write: Any,
    texts: Any,
    layers: tuple[int, ...],
) -> None:
    model = Llama.load(write(tmp_path, config, tensors), device=CPU)
    positions, view = texts.make(model.config, 1, 4, 4).view((0, 0, 2))
    with pytest.raises(ValueError, match=r"the model has layers 0\.\.3"):
        model.forward(positions, positions, view, AuxHiddenStates(layers))


def by_layer(shape: LayerShape, rows: int) -> tuple[Tensor, Tensor]:
    k = torch.randn(rows, shape.kv_heads, shape.k_head_dim)
    return k, torch.randn(rows, shape.kv_heads, shape.v_head_dim)


def test_layers_of_a_group_are_one_tensor_and_a_sharing_layer_has_none() -> None:
    pool = KVCache(MIXED, 3, 4, torch.float32, CPU)
    shapes = [(tuple(group.k.shape), tuple(group.v.shape)) for group in pool.groups]
    assert shapes == [((2, 12, 2, 4), (2, 12, 2, 4)), ((1, 12, 1, 8), (1, 12, 1, 6))]


def test_a_sharing_layer_reads_what_its_owner_stored_and_writes_nothing() -> None:
    pool, rows = KVCache(MIXED, 3, 4, torch.float32, CPU), torch.tensor([5, 4, 9])
    poison(pool)
    stored = [by_layer(FULL if spec.group else WINDOWED, 3) for spec in MIXED.layers]
    for layer, (k, v) in enumerate(stored):
        pool.store(layer, rows, k, v)
    layout = AttentionMetadata(torch.tensor([[1]]), 4, (1,), torch.tensor([1]), 1)
    pool.store(0, torch.tensor([4]), *by_layer(WINDOWED, 1))  # the one row that is shown
    for layer, spec in enumerate(MIXED.layers):
        group, index = MIXED.places[layer]
        k, v = stored[spec.kv_owner]
        assert torch.equal(pool.groups[group].k[index, rows[[0, 2]]], k[[0, 2]])
        assert torch.equal(pool.groups[group].v[index, rows[[0, 2]]], v[[0, 2]])
        if spec.kv_owner != 0 and spec.k_head_dim == spec.v_head_dim:
            q = torch.randn(1, spec.kv_heads, spec.k_head_dim)
            assert torch.equal(
                pool.attend(layer, q, layout, None, DEFAULT_ATTENTION), v[[1]]
            )  # one row: its value


def test_scratch_rows_of_a_sharing_layer_are_those_of_its_owner() -> None:
    scratch = DraftScratch(MIXED, 2, 3, torch.float32, CPU)
    poison(scratch)
    for first in range(3):
        seen = []
        for layer, spec in enumerate(MIXED.layers):
            k, v = by_layer(FULL if spec.group else WINDOWED, 2)
            keys, values = scratch.store(layer, first, 2, k, v)
            assert keys.shape[:2] == values.shape[:2] == (2, first + 1)
            seen.append((keys, values))
            if spec.kv_owner == layer:
                assert torch.equal(keys[:, first], k)
                assert torch.equal(values[:, first], v)
            else:
                owner_keys, owner_values = seen[spec.kv_owner]
                assert torch.equal(keys, owner_keys)
                assert torch.equal(values, owner_values)


def test_clearing_rows_makes_every_group_zero_there() -> None:
    pool = KVCache(MIXED, 3, 4, torch.float8_e4m3fn, CPU)
    poison(pool)
    pool.clear(torch.tensor([4, 7]))
    for group in pool.groups:
        for part in (group.k, group.v):
            assert not part[:, [4, 7]].float().any()
            assert bool(part[:, [3, 5, 6, 8]].float().isnan().all())
