"""Texts of models of transformers that are divided among ranks do not depend on drafts."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from checks.lossless.poison import build_poisoned
from checks.zoo.models import ZooModel
from specdecode_api.boot import EngineBoot
from specdecode_engine.model.transformers.modules import RowRmsNorm
from specdecode_engine.model.transformers.row_norms import JoinedNorms
from specdecode_engine.ranks import Ranks
from specdecode_kernels.testing import backend_of
from tests.engine.loading_ranks import on_loading_ranks
from tests.engine.thread_ranks import on_ranks
from tests.engine.whole_engine import Answer, requests_of, run

STEPS = 3


@pytest.mark.parametrize("name", ["olmo2", "minimax_m2", "llama4_text", "gemma4_text"])
def test_texts_of_several_ranks_do_not_depend_on_the_draft(
    name: str,
    models: Mapping[str, ZooModel],
    eagle3: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models[name].make(tmp_path / name)

    def answers(ranks: Ranks, algorithm: str, topk: int) -> dict[str, Answer]:
        speculation = {"algorithm": algorithm, "num_steps": STEPS, "topk": topk}
        if algorithm == "EAGLE3":
            speculation["draft_path"] = str(eagle3)
        boot = {
            "model": {"path": str(tmp_path / name), "dtype": "float32"},
            "speculation": {} if algorithm == "NONE" else speculation,
            "scheduling": {"max_running_requests": 4, "chunked_prefill_tokens": 12},
            "graphs": {"mode": "static" if topk == 1 else "off"},
            "device": "cpu",
        }
        core = build_poisoned(EngineBoot.model_validate(boot), ranks=ranks)
        found = run(core, requests_of(models[name].vocab, 4, 16), preempted_at_step=6)
        assert (core.counters.decode.drafted_tokens > 0) == (algorithm != "NONE")
        return found

    def of_both(algorithm: str, topk: int) -> list[dict[str, Answer]]:
        return on_loading_ranks(2, lambda ranks: answers(ranks, algorithm, topk), monkeypatch)

    plain = of_both("NONE", 1)
    others = of_both("NGRAM", 1), of_both("EAGLE3", 4)
    assert plain[0] == plain[1]
    assert all(found == plain for found in others)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 4])
def test_norms_over_all_heads_have_the_bits_of_one_rank_in_any_batch(
    size: int, dtype: torch.dtype
) -> None:
    """Of four ranks two have the same of two KV heads."""
    heads, kv_heads, dim, rows = 4, 2, 8, 9
    ops = backend_of("cpu", torch.device("cpu"), dtype)
    widths = heads * dim, kv_heads * dim
    drawn = torch.Generator().manual_seed(size)
    whole = [torch.randn(rows, width, generator=drawn).to(dtype) for width in widths]
    weights = [torch.randn(width, generator=drawn).to(dtype) for width in widths]
    norms = tuple(RowRmsNorm(ops, weight, 1e-6) for weight in weights)
    own = [heads // size * dim, max(kv_heads // size, 1) * dim, 0]

    def normed(ranks: Ranks) -> list[bool]:
        joined = JoinedNorms(norms, widths, own, ranks)
        parts = [x[:, share] for x, share in zip(whole, joined.shares, strict=True)]
        wanted = [
            norm(x)[:, share] for norm, x, share in zip(norms, whole, joined.shares, strict=True)
        ]
        batch = torch.cat(parts, dim=1)
        alone = [joined(row) for row in batch.split(1)]
        return [
            torch.equal(found, part) and torch.equal(torch.cat([row[index] for row in alone]), part)
            for index, (found, part) in enumerate(zip(joined(batch), wanted, strict=True))
        ]

    assert on_ranks(size, normed) == [[True, True]] * size
