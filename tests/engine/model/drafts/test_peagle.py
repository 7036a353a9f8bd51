"""P-EAGLE heads: their tensors, which config.json they have, and drafts of a slow reference."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from checks.drafts_zoo.drafting import find_wrong_token, record_drafts
from checks.drafts_zoo.format import DraftFormat
from checks.drafts_zoo.formats import all_formats
from checks.drafts_zoo.states import find_other_state
from checks.lossless.block_drafts import BLOCK, save_peagle
from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.model.checkpoint.checkpoint import Checkpoint, TensorError
from specdecode_engine.model.checkpoint.config_file import CheckpointError
from specdecode_engine.model.drafts.eagle import Eagle3Head
from specdecode_engine.model.drafts.peagle import PEagleHead
from specdecode_engine.model.implementations import read_config
from specdecode_engine.startup.draft_methods.registry import algorithm_of
from tests.engine.checkpoints import HIDDEN, VOCAB, Checkpoints
from tests.engine.whole_engine import boot_of, requests_of, run

WIDTH = 3 * HIDDEN


def test_drafts_and_state_are_those_of_a_slow_reference(tmp_path: Path) -> None:
    form = all_formats()["peagle"]
    assert isinstance(form, DraftFormat)
    files = form.write(tmp_path, 1)
    assert find_wrong_token(form, files, form.reference(files)) is None
    assert find_other_state(form, files, 1) is None


def test_the_first_token_is_that_of_an_eagle3_head(checkpoints: Checkpoints) -> None:
    """A mask changes nothing of the rows before it."""
    first = []
    for algorithm in ("EAGLE3", "PEAGLE"):
        core = build_poisoned(EngineBoot.model_validate(boot_of(checkpoints, algorithm, 1)))
        drafts = record_drafts(core)
        run(core, requests_of(VOCAB, 3, 12))
        first.append({one.committed: one.tokens[0] for one in drafts})
    both = first[0].keys() & first[1].keys()
    assert len(both) > 8
    assert all(first[0][text] == first[1][text] for text in both)


@pytest.mark.parametrize("shape", [(1, WIDTH), (1, 1, WIDTH)])
def test_the_hidden_state_of_masks_has_two_shapes(
    checkpoints: Checkpoints, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    save_peagle(tmp_path / "draft", checkpoints.eagle3)
    file = tmp_path / "draft" / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"mask_hidden": tensors["mask_hidden"].reshape(shape)}, file)
    target = read_config(checkpoints.target)
    config = PEagleHead.read_config(tmp_path / "draft", target)
    PEagleHead.check(config, PEagleHead.open_tensors(tmp_path / "draft"), target)


def test_each_tensor_is_required_by_name_and_shape(checkpoints: Checkpoints) -> None:
    target = read_config(checkpoints.target)
    config = PEagleHead.read_config(checkpoints.peagle, target)
    whole = Checkpoint.open(checkpoints.peagle)
    PEagleHead.check(config, whole, target)
    for name in sorted(whole.tensors.keys() - {"t2d"}):
        stored = dict(whole.tensors)
        one = stored.pop(name)
        other = replace(one, shape=(*one.shape[:-1], one.shape[-1] + 1))
        for changed in (stored, stored | {name + "s": one}, stored | {name: other}):
            with pytest.raises(CheckpointError, match=name):
                PEagleHead.check(config, replace(whole, tensors=changed), target)


SPECULATORS = {
    "architectures": ["PEagleSpeculator"],
    "speculators_model_type": "peagle",
    "mask_token_id": 7,
    "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    "speculators_config": {"proposal_methods": [{"speculative_tokens": 5}]},
}


def of_speculators(flat: dict[str, Any]) -> dict[str, Any]:
    keys = ("ptd_token_id", "para_num", "eagle_config", "architectures")
    layers = {key: value for key, value in flat.items() if key not in keys}
    draft_vocab = layers.pop("draft_vocab_size")
    return {
        **SPECULATORS,
        "draft_vocab_size": draft_vocab,
        "transformer_layer_config": layers | {"model_type": "llama"},
    }


@pytest.mark.parametrize(
    ("keys", "mask_token_id", "tokens"),
    [
        ({}, VOCAB - 1, BLOCK),
        ({"ptd_token_id": None, "pard_token": 4}, 4, BLOCK),
        ({"mask_token_id": 6}, 6, BLOCK),
        ({"para_num": None}, VOCAB - 1, 8),
        ({"architectures": ["PeagleLlamaForCausalLM"]}, VOCAB - 1, BLOCK),
        (SPECULATORS, 7, 5),
    ],
)
def test_forms_of_config_json(
    checkpoints: Checkpoints, tmp_path: Path, keys: dict[str, Any], mask_token_id: int, tokens: int
) -> None:
    save_peagle(tmp_path / "draft", checkpoints.eagle3)
    file = tmp_path / "draft" / "config.json"
    flat = json.loads(file.read_text())
    document = of_speculators(flat) if keys is SPECULATORS else flat | keys
    file.write_text(json.dumps(document))
    config = PEagleHead.read_config(tmp_path / "draft", read_config(checkpoints.target))
    assert config.aux_spec.layers == (0, 1, 2)
    assert config.mask_token_id == mask_token_id
    assert config.max_steps == tokens
    assert algorithm_of(tmp_path / "draft") == "PEAGLE"
    block = {"draft_tokens": tokens, "mask_token_id": mask_token_id}
    assert config.facts == {"block_draft": block}


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"ptd_token_id": VOCAB}, "ptd_token_id is 97; the target's vocabulary has 97 tokens"),
        ({"ptd_token_id": None}, "mask_token_id is missing; set it to the token"),
        ({"para_num": 0}, "para_num is 0; it must be a positive integer"),
        ({"architectures": ["LlamaForCausalLM"]}, "a P-EAGLE head has PEagleSpeculator or"),
        ({"vocab_size": 98}, "vocab_size is 98; the target's is 97"),
    ],
)
def test_configs_that_are_not_computed_are_refused(
    checkpoints: Checkpoints, tmp_path: Path, keys: dict[str, Any], error: str
) -> None:
    save_peagle(tmp_path / "draft", checkpoints.eagle3, **keys)
    with pytest.raises(CheckpointError, match=error):
        PEagleHead.read_config(tmp_path / "draft", read_config(checkpoints.target))


def test_each_algorithm_refuses_the_heads_of_the_other(checkpoints: Checkpoints) -> None:
    target = read_config(checkpoints.target)
    with pytest.raises(CheckpointError, match="drafts all tokens at once is one of PEAGLE"):
        Eagle3Head.read_config(checkpoints.peagle, target)
    with pytest.raises(CheckpointError, match="mask_token_id is missing"):
        PEagleHead.read_config(checkpoints.eagle3, target)


def test_a_missing_hidden_state_of_masks_is_named(checkpoints: Checkpoints, tmp_path: Path) -> None:
    save_peagle(tmp_path / "draft", checkpoints.eagle3)
    file = tmp_path / "draft" / "model.safetensors"
    tensors = load_file(file)
    assert tensors.pop("mask_hidden").dtype is torch.float32
    save_file(tensors, file)
    target = read_config(checkpoints.target)
    config = PEagleHead.read_config(tmp_path / "draft", target)
    with pytest.raises(TensorError, match="lacks mask_hidden"):
        PEagleHead.check(config, PEagleHead.open_tensors(tmp_path / "draft"), target)
