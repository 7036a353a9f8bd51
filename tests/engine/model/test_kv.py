"""Pool, scratch and views: a drafted chain in the scratch equals the same tokens in pages."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lossless.poison import poison
from specdecode_engine.model.config import AuxHiddenStates
from specdecode_engine.model.kv_cache import DraftScratch, KVCache, ScratchView
from specdecode_engine.model.llama import Llama

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_a_pool_is_zero_until_a_test_poisons_it(dtype: torch.dtype) -> None:
    pool = KVCache(2, 3, 4, 1, 6, dtype, CPU)
    assert pool.k.shape == pool.v.shape == (2, 12, 1, 6)
    assert not pool.k.float().any()
    assert not pool.v.float().any()
    poison(pool)
    assert bool(pool.k.float().isnan().all())
    assert bool(pool.v.float().isnan().all())


def test_bytes_per_page_are_what_a_page_takes() -> None:
    pool = KVCache(2, 3, 4, 1, 6, torch.bfloat16, CPU)
    assert 3 * KVCache.bytes_per_page(2, 4, 1, 6, torch.bfloat16) == pool.k.nbytes + pool.v.nbytes


def test_a_pool_needs_a_page_besides_the_padding_page() -> None:
    with pytest.raises(ValueError, match="a pool of 1 pages"):
        KVCache(2, 1, 4, 1, 6, torch.float32, CPU)


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
    before = cached.pool.k.clone()
    scratch = DraftScratch(4, 3, steps, 2, 6, torch.float64, CPU)
    scratch.k.fill_(torch.nan)
    scratch.v.fill_(torch.nan)
    for step in range(steps):
        ends = [length + step for length in lengths]
        tokens = torch.stack([ids[text, end] for text, end in enumerate(ends)])
        view = ScratchView(cached.pool, scratch, step, cached.prefix(lengths))
        drafted, _ = model.forward(tokens, torch.tensor(ends), view)
        spans = [(text, end, end + 1) for text, end in enumerate(ends)]
        torch.testing.assert_close(drafted, model.forward(tokens, *paged.view(*spans))[0])
    torch.testing.assert_close(cached.pool.k, before, equal_nan=True, rtol=0, atol=0)


def test_a_batch_without_rows_runs(
    tmp_path: Path, config: dict[str, object], tensors: dict[str, Tensor], write: Any, texts: Any
) -> None:
    model = Llama.load(write(tmp_path, config, tensors), device=CPU)
    nothing = torch.zeros(0, dtype=torch.int64)
    _, view = texts.make(model.config, 1, 4, 4).view((0, 2, 2))
    assert model.logits(model.forward(nothing, nothing, view)[0]).shape == (0, 31)


@pytest.mark.parametrize("layers", [(4,), (-1,), (0, 9)])
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
