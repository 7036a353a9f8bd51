"""Drafts over the target's keys and values in whole engines: texts, and transformers' logits."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from checks.drafts_zoo.format import DraftFiles
from checks.drafts_zoo.formats import frozen_kv
from checks.drafts_zoo.formats.frozen_kv import SlowAssistant
from checks.drafts_zoo.targets import VOCAB
from checks.lossless.assistant import write_assistant
from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.shapes import ForwardKind
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.drafts.frozen import PIECE_BYTES, CentroidHead
from specdecode_engine.model.drafts.frozen_config import Shortlist
from specdecode_engine.model.forward import ForwardOutputs
from specdecode_engine.model.layers.layers import Linear
from specdecode_engine.speculate import frozen_drafter
from specdecode_kernels import TORCH
from tests.engine.checkpoints import Checkpoints
from tests.engine.test_mtp import make_core, run


@pytest.mark.parametrize("graphs", ["off", "static"])
@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_text_changes(
    checkpoints: Checkpoints,
    tmp_path: Path,
    graphs: str,
    topk: int,
    is_listed: bool,
    temperature: float,
) -> None:
    plain = make_core(checkpoints.target)
    expected = run(plain, temperature)
    draft = write_assistant(checkpoints.target, tmp_path / "draft", is_listed=is_listed)
    options: dict[str, Any] = {"draft_path": str(draft), "num_steps": 3, "topk": topk}
    core = make_core(checkpoints.target, graphs=graphs, algorithm="FROZEN_KV_MTP", **options)
    assert run(core, temperature) == expected
    counted = core.counters.decode
    assert counted.accepted_tokens > 0
    assert core.context.graphs.report().graph_steps == (counted.steps if graphs != "off" else 0)
    page_bytes = {one.facts["kv_cache_bytes"] // one.facts["kv_pages"] for one in (plain, core)}  # type: ignore[operator]
    assert len(page_bytes) == 1, "the draft has no KV cache"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> DraftFiles:
    return frozen_kv.write(tmp_path_factory.mktemp("files"), 2, fit_steps=5)


@pytest.mark.parametrize("position", [-1, 0])
@pytest.mark.parametrize("graphs", ["off", "static"])
def test_logits_are_those_of_transformers_assistant(
    files: DraftFiles, position: int, graphs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers of both types, of a target whose last layers share keys and values; both positions."""
    for module in (frozen_drafter, frozen_kv):
        monkeypatch.setattr(module, "POSITION", position)
    reference = SlowAssistant(files)
    options: dict[str, Any] = {"draft_path": str(files.draft), "num_steps": 3}
    core = make_core(files.target, graphs=graphs, algorithm="FROZEN_KV_MTP", **options)
    assert core.facts["frozen_kv"] == {"target_layers": [2, 2, 3], "scored_tokens": 40}
    with _recorded_logits(core) as found:
        run(core)
    assert len(found) > 30
    for (committed, drafted), logits in found.items():
        expected = reference.next_logits(committed, drafted)
        assert expected is not None
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)  # norms in float32
    assert {len(drafted) for _, drafted in found} == {0, 1, 2}


Logits = dict[tuple[tuple[int, ...], tuple[int, ...]], torch.Tensor]


@contextmanager
def _recorded_logits(core: EngineCore) -> Iterator[Logits]:
    """Note the logits of all tokens by the committed and the drafted ones of a chain."""
    graphs, table, found = core.context.graphs, core.context.table, Logits()
    run_graph, drafted = graphs.run, list[list[int]]()

    def noted(kind: ForwardKind, inputs: DecodeInputs) -> ForwardOutputs:
        outputs = run_graph(kind, inputs)
        if kind.is_of_target:
            return outputs
        if kind is ForwardKind.CATCH_UP:
            drafted.clear()
        if inputs.tokens is not None:
            drafted.append(inputs.tokens[:, 0].tolist())
        assert outputs.ids is not None
        batch = inputs.gather(table)
        for row, length in enumerate(batch.lengths.tolist()):
            owner = batch.req_indices[row].expand(length + 1)
            committed = tuple(table.tokens_at(owner, torch.arange(length + 1)).tolist())
            logits = torch.full((VOCAB,), -torch.inf, dtype=torch.float64)
            logits[outputs.ids[row]] = outputs.logits[row].double()
            found[committed, tuple(level[row] for level in drafted)] = logits
        return outputs

    with mock.patch.object(graphs, "run", noted):
        yield found


@pytest.mark.parametrize("piece_bytes", [PIECE_BYTES, 1])
def test_listed_tokens_are_those_of_transformers(
    piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several tokens to a centroid; rows in pieces."""
    from transformers import Gemma4AssistantConfig, Gemma4TextConfig
    from transformers.models.gemma4_assistant import modeling_gemma4_assistant

    monkeypatch.setattr("specdecode_engine.model.drafts.frozen.PIECE_BYTES", piece_bytes)
    make: Any = Gemma4AssistantConfig
    make_text: Any = Gemma4TextConfig
    config = make(
        text_config=make_text(
            vocab_size=96,
            hidden_size=20,
            hidden_size_per_layer_input=0,
            vocab_size_per_layer_input=0,
        ),
        num_centroids=12,
        centroid_intermediate_top_k=3,
    )
    module = modeling_gemma4_assistant.Gemma4AssistantMaskedEmbedder(config).double()
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 20, generator=generator).double()
    ordering = torch.randperm(96, generator=generator)
    module.token_ordering.copy_(ordering)
    normed = torch.randn(7, 20, generator=generator).double()
    theirs = module(normed[None], weight)[0].detach()
    centroids = Linear(TORCH, module.centroids.weight.detach())
    ours = CentroidHead(Shortlist(12, 3, 8), centroids, ordering.view(12, 8))
    logits, ids = ours(normed, weight[ordering])
    assert logits.shape == ids.shape == (7, 24)
    found = theirs.amin(1, keepdim=True).expand(7, 96).scatter(1, ids, logits)
    torch.testing.assert_close(found, theirs)
