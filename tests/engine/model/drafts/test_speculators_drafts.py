"""Drafts that speculators wrote have its logits, on the hidden states that targets hand them.

`speculators/write.py` made them, in an environment of its own.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot, ModelImplementation
from specdecode_api.speculation import Algorithm
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.checkpoint.config_file import CheckpointError, DraftMismatch
from specdecode_engine.model.drafts.dflash import DFlashHead
from specdecode_engine.model.drafts.draft_head import DraftHead
from specdecode_engine.model.implementations import load_model, read_config
from specdecode_engine.model.kv.block_view import BlockMasks, BlockView
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.target.config import EMBEDDED, AuxHiddenStates
from specdecode_engine.model.target.language_model import LanguageModel
from specdecode_engine.startup.draft_methods.registry import METHODS, algorithm_of, read_draft
from specdecode_engine.startup.model_check import CheckOptions, check_pair
from specdecode_kernels import AttentionMetadata
from tests.engine.whole_engine import requests_of, run, tokens_of

WRITTEN = Path(__file__).parent / "speculators"
TARGET = WRITTEN / "target"
CPU = torch.device("cpu")
PAGE_SIZE, BONUS = 4, 11
DRAFTS = {
    "eagle3": AuxHiddenStates(layers=(EMBEDDED, 1, 2)),
    "dflash": AuxHiddenStates(layers=(0, 2)),
    "dspark": AuxHiddenStates(layers=(EMBEDDED, 1)),
    "mtp": AuxHiddenStates(final=True),
}
BOUNDARIES = {
    "eagle3": "eagle_aux_hidden_state_layer_ids",
    "peagle": "eagle_aux_hidden_state_layer_ids",
    "dflash": "aux_hidden_state_layer_ids",
    "dspark": "aux_hidden_state_layer_ids",
}


def open_target(implementation: ModelImplementation) -> LanguageModel:
    return load_model(
        TARGET,
        read_config(TARGET, implementation),
        dtype=torch.float32,
        device=CPU,
        context_length=64,
        progress=None,
        open_store=None,
        linears=Linears(),
    )


@dataclass(frozen=True)
class Draft:
    """A draft and what its target hands it of the text of the expected logits."""

    head: Any
    ids: Tensor
    logits: Tensor
    hidden: Tensor

    @classmethod
    def open(cls, name: str, target: LanguageModel, texts: Any) -> "Draft":
        expected = load_file(WRITTEN / name / "expected.safetensors")
        ids, method = expected["ids"], METHODS[algorithm_of(WRITTEN / name)]
        assert method.head is not None
        head: Any = method.head.load(WRITTEN / name, target)
        pool = KVCache(target.config.layer_map, 8, PAGE_SIZE, torch.float32, CPU)
        pages = torch.arange(1, 8)[None]
        positions, view = texts(pool, pages).view((0, 0, len(ids)))
        hidden = target.forward(ids, positions, view, head.config.aux_spec)[1]
        assert hidden is not None
        return cls(head, ids, expected["logits"], hidden)

    def after_pairs(self, texts: Any) -> Tensor:
        """Logits of a head that pairs each hidden state with the token after it."""
        rows, head = len(self.logits), self.head
        positions, view = texts.make(head.config, 1, rows, PAGE_SIZE).view((0, 0, rows))
        assert isinstance(head, DraftHead)
        fused = head.fuse(self.hidden[:rows])
        return head.logits(head.forward(self.ids[1 : rows + 1], fused, positions, view)[0])

    def of_block(self) -> Tensor:
        """Logits of the block after a context."""
        head, rows = self.head, self.head.config.block_size
        assert isinstance(head, DFlashHead)
        pool = KVCache(head.config.layer_map, 8, PAGE_SIZE, torch.float32, CPU)
        context, pages = torch.arange(BONUS), torch.arange(1, 5)[None]
        head.write_context(self.hidden[:BONUS], context, pool, context + PAGE_SIZE)
        prefix = torch.full((rows,), BONUS)
        layout = AttentionMetadata(pages, PAGE_SIZE, (rows,), prefix, BONUS)
        masks = BlockMasks.make(1, rows, CPU).of(1, rows)
        view = BlockView(pool, layout, masks, head.config.causal_layers)
        bonus = self.ids[BONUS : BONUS + 1]
        hidden = head.forward(bonus, torch.arange(BONUS, BONUS + rows), view)
        return head.logits(hidden.flatten(0, 1))


@pytest.mark.parametrize(
    ("name", "implementation"),
    [*[(name, "native") for name in DRAFTS], ("eagle3", "transformers")],
)
def test_logits_are_those_of_speculators(
    name: str, implementation: ModelImplementation, texts: Any
) -> None:
    draft = Draft.open(name, open_target(implementation), texts)
    assert draft.head.config.aux_spec == DRAFTS[name]
    is_block = isinstance(draft.head, DFlashHead)
    found = draft.of_block() if is_block else draft.after_pairs(texts)
    first = draft.head.config.first_row if is_block else 0
    torch.testing.assert_close(found, draft.logits[first:], atol=2e-5, rtol=1e-5)


def engine(**speculation: object) -> EngineCore:
    boot = {
        "model": {"path": str(TARGET), "dtype": "float32"},
        "speculation": speculation,
        "scheduling": {"max_running_requests": 4, "chunked_prefill_tokens": 12},
        "device": "cpu",
    }
    return build_poisoned(EngineBoot.model_validate(boot))


@pytest.fixture(scope="module")
def plain() -> dict[str, list[int]]:
    return tokens_of(run(engine(), requests_of(63, 3, 8)))


@pytest.mark.parametrize(
    ("name", "keys", "proposed"),
    [
        ("eagle3", {}, 1),
        ("dflash", {"topk": 2}, 4),
        ("dspark", {"table": {"1": {"candidate_steps": [3], "verify_tokens": 2}}}, 3),
        ("mtp", {}, 2),
    ],
)
def test_an_engine_drafts_with_what_check_approves(
    name: str, keys: dict[str, object], proposed: int, plain: dict[str, list[int]]
) -> None:
    checked = check_pair(TARGET, WRITTEN / name, CheckOptions())
    assert checked.is_served, checked.reasons
    assert checked.algorithm is Algorithm(name.upper())
    draft = {"algorithm": checked.algorithm, "draft_path": str(WRITTEN / name)}
    core = engine(**draft, policy="static", num_steps=3, **keys)
    assert core.facts["proposed_draft_steps"] == proposed
    assert "draft_warning" not in core.facts
    assert tokens_of(run(core, requests_of(63, 3, 8), preempted_at_step=4)) == plain
    assert core.counters.decode.drafted_tokens > 0


@pytest.mark.parametrize("algorithm", ["DFLASH", "EAGLE3", "MTP", "STANDALONE"])
@pytest.mark.parametrize("name", ["dflash2", "xpress"])
def test_kinds_that_are_not_computed_are_refused_by_name(name: str, algorithm: str) -> None:
    error = (
        f"{WRITTEN / name}/config.json: speculators_model_type is '{name}'; drafts of this kind "
        "are not supported; use one of eagle3, peagle, dflash, dspark or mtp"
    )
    assert check_pair(TARGET, WRITTEN / name, CheckOptions()).reasons == (error,)
    with pytest.raises(CheckpointError) as refused:
        read_draft(Algorithm(algorithm), WRITTEN / name, read_config(TARGET))
    assert str(refused.value) == error


def changed(folder: Path, kind: str, **keys: object) -> Path:
    """Write the config.json of a kind of draft, with other keys."""
    source = json.loads((WRITTEN / kind.replace("peagle", "eagle3") / "config.json").read_text())
    if kind == "peagle":
        source |= {"architectures": ["PEagleDraftModel"], "mask_token_id": 7}
    folder.mkdir()
    document = {**source, "speculators_model_type": kind, **keys}
    (folder / "config.json").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize(
    ("boundaries", "layers"),
    [([3, 1, 2], (0, 1, 2)), ([0, 1], (EMBEDDED, 0)), ([1, 0, 3], (EMBEDDED, 0, 2))],
    ids=str,
)
@pytest.mark.parametrize("kind", BOUNDARIES)
def test_boundaries_are_read_by_layer(
    tmp_path: Path, kind: str, boundaries: list[int], layers: tuple[int, ...]
) -> None:
    folder = changed(tmp_path / "draft", kind, **{BOUNDARIES[kind]: boundaries})
    read = read_draft(Algorithm(kind.upper()), folder, read_config(TARGET))
    assert read.aux_spec.layers == layers


@pytest.mark.parametrize("boundaries", [[1, 1], [-1, 2], [2, 4]], ids=str)
@pytest.mark.parametrize("kind", BOUNDARIES)
def test_boundaries_that_are_not_there_are_refused(
    tmp_path: Path, kind: str, boundaries: list[int]
) -> None:
    folder = changed(tmp_path / "draft", kind, **{BOUNDARIES[kind]: boundaries})
    with pytest.raises(DraftMismatch) as refused:
        read_draft(Algorithm(kind.upper()), folder, read_config(TARGET))
    assert str(refused.value) == (
        f"{folder}/config.json: {BOUNDARIES[kind]} is {boundaries}; use a draft made for this "
        "target, or state different boundaries between the target's 3 layers: 0..3"
    )


def with_layer(kind: str, **keys: object) -> Mapping[str, object]:
    config = json.loads((WRITTEN / kind / "config.json").read_text())
    return {"transformer_layer_config": config["transformer_layer_config"] | keys}


@pytest.mark.parametrize(
    ("kind", "keys", "error"),
    [
        (
            "eagle3",
            with_layer("eagle3", hidden_act="gelu"),
            "hidden_act is 'gelu'; supported: silu, swish, gelu_pytorch_tanh",
        ),
        (
            "mtp",
            with_layer("mtp", model_type="gemma3_text"),
            "model_type is 'gemma3_text'; supported: qwen3, qwen3_next, qwen3_5_text, "
            "qwen3_5_moe_text",
        ),
        (
            "dspark",
            {"enable_confidence_head": True, "confidence_head_with_markov": True},
            "markov_rank is 0; confidence_head_with_markov must be false without a Markov head",
        ),
        (
            "peagle",
            {"mask_token_id": None},
            "mask_token_id is missing; set it to the token of masked positions in the draft's "
            "training",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_that_are_not_computed_are_refused(
    tmp_path: Path, kind: str, keys: dict[str, object], error: str
) -> None:
    folder = changed(tmp_path / "draft", kind, **keys)
    with pytest.raises(CheckpointError) as refused:
        read_draft(Algorithm(kind.upper()), folder, read_config(TARGET))
    assert str(refused.value).endswith(error)


def test_a_module_is_found_without_its_tensors(tmp_path: Path) -> None:
    shutil.copy(WRITTEN / "mtp" / "config.json", tmp_path)
    checked = check_pair(TARGET, tmp_path, CheckOptions())
    assert (checked.is_served, checked.algorithm) == (True, Algorithm.MTP)
    whole = check_pair(TARGET, WRITTEN / "mtp", CheckOptions())
    assert checked.draft is not None
    assert whole.draft is not None
    assert checked.draft.parameters == whole.draft.parameters
