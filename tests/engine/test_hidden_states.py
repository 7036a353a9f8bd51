"""STANDALONE has no hidden state anywhere; EAGLE keeps its own, and garbage in it is harmless."""

from dataclasses import replace

import pytest
import torch

from checks.lossless.poison import build_poisoned
from checks.lossless.verify_rows import RandomVerifyRows
from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.batch.request_table import DecodeBatch
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.target.llama import Llama
from specdecode_engine.speculate.draft_state import HiddenStateRing

PROMPT = (3, 14, 15, 92, 65, 35)


def make_core(checkpoints, algorithm: str, topk: int = 1) -> EngineCore:
    folders = {"STANDALONE": checkpoints.draft, "EAGLE3": checkpoints.eagle3}
    speculation: dict[str, object] = {}
    if algorithm != "NONE":
        draft_path = str(folders[algorithm])
        speculation = {
            "algorithm": algorithm, "draft_path": draft_path, "num_steps": 3, "topk": topk,
        }  # fmt: skip
    document = {
        "model": {"path": str(checkpoints.target), "dtype": "float32"},
        "speculation": speculation,
        "device": "cpu",
    }
    return build_poisoned(EngineBoot.model_validate(document))


def generate(core: EngineCore) -> list[int]:
    params = SamplingParams(seed=1, max_tokens=40, temperature=0.0, ignore_eos=True)
    core.submit(Request("r", PROMPT, params))
    tokens: list[int] = []
    while core.has_work():
        for output in core.step():
            tokens += output.token_ids
    return tokens


@pytest.mark.parametrize("topk", [1, 4])
def test_standalone_captures_allocates_and_carries_no_hidden_state(
    checkpoints, monkeypatch: pytest.MonkeyPatch, topk: int
) -> None:
    """Every place that could hold one raises or is poisoned, and nothing notices."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a hidden-state buffer was allocated")

    handed_over = []
    forward = Llama.forward

    def recorded(
        self: Llama, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        hidden, aux = forward(self, *args, **kwargs)  # type: ignore[arg-type]
        handed_over.append(aux)
        return hidden, aux

    expected = generate(make_core(checkpoints, "NONE"))
    monkeypatch.setattr(HiddenStateRing, "__init__", refuse)
    monkeypatch.setattr(Llama, "forward", recorded)
    core = make_core(checkpoints, "STANDALONE", topk)
    assert core.context.aux_spec.is_empty
    assert generate(core) == expected
    assert handed_over
    assert all(captured is None for captured in handed_over)


@pytest.mark.parametrize("draws_rows", [False, True], ids=["", "random verify rows"])
@pytest.mark.parametrize("topk", [1, 4])
def test_eagle_features_come_from_the_target_and_garbage_behind_the_path_is_never_read(
    checkpoints, monkeypatch: pytest.MonkeyPatch, topk: int, draws_rows: bool
) -> None:
    """Unwritten rows of a ring, and rows after an accepted path, may contain anything."""
    clean = make_core(checkpoints, "EAGLE3", topk)
    clean.choose_rows = RandomVerifyRows(3) if draws_rows else clean.choose_rows
    expected = generate(clean)
    assert expected == generate(make_core(checkpoints, "NONE"))
    make, write_rows = HiddenStateRing.__init__, HiddenStateRing.write_rows

    def poisoned_ring(self: HiddenStateRing, *args: object, **kwargs: object) -> None:
        make(self, *args, **kwargs)  # type: ignore[arg-type]
        self._rows.fill_(torch.nan)

    monkeypatch.setattr(HiddenStateRing, "__init__", poisoned_ring)
    poisoned = make_core(checkpoints, "EAGLE3", topk)
    poisoned.choose_rows = RandomVerifyRows(3) if draws_rows else poisoned.choose_rows
    table = poisoned.context.table

    def poisoned_rows(self: HiddenStateRing, batch: DecodeBatch, features: torch.Tensor) -> None:
        # The step is already committed: the lengths give each accepted path's end.
        committed = table.decode_batch(
            batch.host_req_indices, batch.host_lengths, batch.req_indices
        )
        went = committed.lengths - batch.lengths
        behind = torch.arange(features.shape[1]) >= went[:, None]
        features = features.masked_fill(behind[:, :, None], torch.nan)
        write_rows(self, batch, features)

    monkeypatch.setattr(HiddenStateRing, "write_rows", poisoned_rows)
    assert generate(poisoned) == expected
    assert poisoned.counters.decode.accepted_tokens == clean.counters.decode.accepted_tokens


def test_a_draft_of_another_width_works(checkpoints, tmp_path) -> None:
    """R9: the draft's own sizes are used for everything of the draft."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    narrow = LlamaConfig(
        vocab_size=97, hidden_size=24, intermediate_size=40, num_hidden_layers=1,
        num_attention_heads=3, num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    LlamaForCausalLM(narrow).save_pretrained(tmp_path)
    other = replace(checkpoints, draft=tmp_path)
    assert generate(make_core(other, "STANDALONE", 3)) == generate(make_core(checkpoints, "NONE"))
