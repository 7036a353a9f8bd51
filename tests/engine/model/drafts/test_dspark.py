"""DSpark drafts: what their heads add to a block, their tensors, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from checks.drafts_zoo.drafting import find_wrong_token
from checks.drafts_zoo.format import DraftFormat
from checks.drafts_zoo.formats import all_formats
from checks.drafts_zoo.states import find_other_state
from checks.lossless.block_drafts import BLOCK, RANK, save_dflash, save_dspark
from checks.lossless.poison import build_poisoned
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.checkpoint.checkpoint import Checkpoint, TensorError
from specdecode_engine.model.checkpoint.config_file import CheckpointError, ConfigFile
from specdecode_engine.model.drafts.dflash import DFlashHead
from specdecode_engine.model.drafts.dspark import DSparkHead, is_dspark
from specdecode_engine.model.implementations import read_config
from specdecode_engine.startup.draft_methods.registry import algorithm_of
from tests.engine.checkpoints import HIDDEN, VOCAB, Checkpoints
from tests.engine.test_block_drafts import PROMPTS, Recorded, make_boot, recorded, request, run

__all__ = ["recorded"]
KINDS = ("vanilla", "gated", "rnn")


def edit(folder: Path, **tensors: Tensor) -> None:
    """Replace tensors of a draft; underscores for dots at the end of the name."""
    file = folder / "model.safetensors"
    save_file({**load_file(file), **tensors}, file)


def decode_all(core: EngineCore) -> None:
    requests = [
        request(str(number), prompt, temperature=number % 2, max_tokens=12)
        for number, prompt in enumerate(PROMPTS)
    ]
    run(core, *requests)


@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_adds_nothing_drafts_as_dflash(
    checkpoints: Checkpoints, tmp_path: Path, recorded: Recorded, kind: str, topk: int
) -> None:
    """With rows that draft as DFlash's do."""
    save_dspark(tmp_path / "draft", checkpoints.target, kind, sample_from_anchor=False)
    edit(tmp_path / "draft", **{"markov_head.markov_w2.weight": torch.zeros(VOCAB, RANK)})
    drafts = []
    for draft, algorithm in ((tmp_path / "draft", "DSPARK"), (checkpoints.dflash, "DFLASH")):
        recorded.drafts.clear()
        boot = make_boot(
            checkpoints.target, draft, speculation={"algorithm": algorithm, "topk": topk}
        )
        decode_all(build_poisoned(boot))
        drafts.append([one.tokens.tolist() for one in recorded.drafts])
    assert drafts[0] == drafts[1]
    assert len(drafts[0]) > 8


def successor(token: int) -> int:
    return (5 * token + 3) % VOCAB


def force_bigrams(folder: Path, kind: str) -> None:
    """Make every token's successor certain, by one number of the head's rank for each token."""
    eye = torch.eye(VOCAB)
    order = torch.tensor([successor(token) for token in range(VOCAB)])
    tensors = {
        "markov_head.markov_w1.weight": eye,
        "markov_head.markov_w2.weight": 1e4 * torch.zeros(VOCAB, VOCAB).index_copy(0, order, eye),
    }
    if kind == "gated":
        tensors["markov_head.gate_proj.weight"] = torch.zeros(VOCAB, HIDDEN + VOCAB)
        tensors["markov_head.gate_proj.bias"] = torch.zeros(VOCAB)
    elif kind == "rnn":
        joint = torch.zeros(3 * VOCAB, 2 * VOCAB + HIDDEN)
        joint[2 * VOCAB :, VOCAB : 2 * VOCAB] = 9 * eye
        tensors["markov_head.joint_proj.weight"] = joint
        tensors["markov_head.joint_proj.bias"] = torch.zeros(3 * VOCAB)
    edit(folder, **tensors)


@pytest.mark.parametrize(("topk", "graphs"), [(1, "off"), (1, "static"), (3, "off")])
@pytest.mark.parametrize("kind", KINDS)
def test_one_hot_weights_force_bigrams(
    checkpoints: Checkpoints, tmp_path: Path, recorded: Recorded, kind: str, topk: int, graphs: str
) -> None:
    """In chains and trees, greedy and sampled: the best token after each node is its successor."""
    keys: dict[str, Any] = {"markov_rank": VOCAB, "enable_confidence_head": False}
    save_dspark(tmp_path / "draft", checkpoints.target, kind, **keys)
    stored = load_file(tmp_path / "draft" / "model.safetensors")
    kept = {name: one for name, one in stored.items() if "confidence" not in name}
    save_file(kept, tmp_path / "draft" / "model.safetensors")
    force_bigrams(tmp_path / "draft", kind)
    speculation = {"algorithm": "DSPARK", "topk": topk, "num_steps": BLOCK}
    boot = make_boot(
        checkpoints.target, tmp_path / "draft", speculation=speculation, graphs={"mode": graphs}
    )
    decode_all(build_poisoned(boot))
    checked = 0
    for draft, bonus in zip(recorded.drafts, recorded.bonus, strict=True):
        for row, first in zip(draft.tokens.tolist(), bonus, strict=True):
            token = first
            for drafted in row[:1] if topk > 1 else row:
                token = successor(token)
                assert drafted == token
                checked += 1
        if draft.tree is not None:
            assert_first_children_are_successors(draft.tokens, draft.tree.parents, bonus)
    assert checked > 20


def assert_first_children_are_successors(tokens: Tensor, parents: Tensor, bonus: list[int]) -> None:
    for row, above, first in zip(tokens.tolist(), parents.tolist(), bonus, strict=True):
        nodes, seen = [first, *row], set[int]()
        for node, parent in enumerate(above[1:], start=1):
            if parent not in seen:  # the best child comes first
                assert nodes[node] == successor(nodes[parent])
            seen.add(parent)


def test_drafts_and_state_are_those_of_a_slow_reference(tmp_path: Path) -> None:
    """Of the head with a state; `make drafts-zoo` has them all."""
    form = all_formats()["dspark-rnn"]
    assert isinstance(form, DraftFormat)
    files = form.write(tmp_path, 1)
    assert find_wrong_token(form, files, form.reference(files)) is None
    assert find_other_state(form, files, 1) is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix", ["", "model."])
def test_each_tensor_is_required_by_name_and_shape(
    checkpoints: Checkpoints, tmp_path: Path, kind: str, prefix: str
) -> None:
    save_dspark(tmp_path / "draft", checkpoints.target, kind)
    file = tmp_path / "draft" / "model.safetensors"
    save_file({prefix + name: one for name, one in load_file(file).items()}, file)
    target = read_config(checkpoints.target)
    config = DSparkHead.read_config(tmp_path / "draft", target)
    whole = Checkpoint.open(tmp_path / "draft")
    DSparkHead.check(config, whole, target)
    own = [name for name in whole.tensors if "markov" in name or "confidence" in name]
    assert len(own) == {"vanilla": 4, "gated": 6, "rnn": 6}[kind]
    for name in own:
        stored = dict(whole.tensors)
        one = stored.pop(name)
        other = replace(one, shape=(one.shape[0] + 1, *one.shape[1:]))
        for changed in (stored, stored | {name + "s": one}, stored | {name: other}):
            with pytest.raises(TensorError, match=name.removeprefix(prefix)):
                DSparkHead.check(config, replace(whole, tensors=changed), target)


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"markov_rank": 0}, "markov_rank is 0; it must be a positive integer"),
        ({"markov_rank": -1}, "markov_rank is -1; it must be a positive integer"),
        ({"markov_head_type": "lstm"}, "markov_head_type is 'lstm'; supported: vanilla, gated"),
        ({"rope_is_neox_style": False}, "rope_is_neox_style is False; only rotary positions"),
        ({"block_size": 1}, "block_size is 1; .* at least 2"),
        ({"enable_confidence_head": 3}, "enable_confidence_head is 3; it must be true or false"),
    ],
)
def test_configs_that_are_not_computed_are_refused(
    checkpoints: Checkpoints, tmp_path: Path, keys: dict[str, Any], error: str
) -> None:
    save_dspark(tmp_path / "draft", checkpoints.target, architectures=["DFlashDraftModel"], **keys)
    with pytest.raises(CheckpointError, match=error):
        DSparkHead.read_config(tmp_path / "draft", read_config(checkpoints.target))


@pytest.mark.parametrize(
    ("keys", "tokens"),
    [
        ({}, BLOCK),
        ({"sample_from_anchor": True}, BLOCK),
        ({"sample_from_anchor": False}, BLOCK - 1),
        ({"dspark_bonus_anchor": True}, BLOCK - 1),
        ({"architectures": ["DSparkDraftModel"]}, BLOCK),
        ({"architectures": ["DFlashDraftModel"]}, BLOCK),
    ],
)
def test_forms_of_config_json(
    checkpoints: Checkpoints, tmp_path: Path, keys: dict[str, Any], tokens: int
) -> None:
    """Keys of the heads are at the top or next to DFlash's."""
    target = read_config(checkpoints.target)
    save_dspark(tmp_path / "draft", checkpoints.target, **keys)
    file = tmp_path / "draft" / "config.json"
    flat = json.loads(file.read_text())
    nested = dict(flat)
    moved = ("markov_rank", "markov_head_type", "enable_confidence_head")
    nested["dflash_config"] = flat["dflash_config"] | {key: nested.pop(key) for key in moved}
    for document in (flat, nested):
        file.write_text(json.dumps(document))
        config = DSparkHead.read_config(tmp_path / "draft", target)
        assert config.max_steps == config.proposed_draft_steps == tokens
        assert algorithm_of(tmp_path / "draft") == "DSPARK"
        facts = config.facts["block_draft"]
        assert isinstance(facts, dict)
        assert (facts["markov_head"], facts["markov_rank"]) == ("rnn", RANK)
        assert facts["confidence_head"] == "used with verify_tokens"
        assert facts["draft_tokens"] == tokens


def test_the_form_of_speculators_is_read(checkpoints: Checkpoints, tmp_path: Path) -> None:
    save_dspark(tmp_path / "draft", checkpoints.target, "vanilla")
    file = tmp_path / "draft" / "config.json"
    layers = json.loads(file.read_text())
    own = {key: layers.pop(key) for key in ("block_size", "markov_rank", "markov_head_type")}
    del layers["dflash_config"], layers["architectures"]
    document = {
        **own,
        "architectures": ["DSparkSpeculator"],
        "speculators_model_type": "dspark",
        "aux_hidden_state_layer_ids": [1, 2],
        "mask_token_id": 7,
        "speculators_config": {"proposal_methods": [{"speculative_tokens": 5}]},
        "transformer_layer_config": {**layers, "model_type": "qwen3"},
    }
    file.write_text(json.dumps(document))
    config = DSparkHead.read_config(tmp_path / "draft", read_config(checkpoints.target))
    assert (config.aux_spec.layers, config.mask_token_id) == ((0, 1), 7)
    assert (config.max_steps, config.proposed_draft_steps) == (BLOCK, 5)


def test_each_algorithm_refuses_the_drafts_of_the_other(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    target = read_config(checkpoints.target)
    save_dspark(tmp_path / "spark", checkpoints.target, architectures=["DFlashDraftModel"])
    save_dflash(tmp_path / "flash", checkpoints.target)
    assert is_dspark(ConfigFile.open(tmp_path / "spark" / "config.json"))
    assert not is_dspark(ConfigFile.open(tmp_path / "flash" / "config.json"))
    with pytest.raises(CheckpointError, match=r"markov_rank is 8; .* Markov head .* DSPARK"):
        DFlashHead.read_config(tmp_path / "spark", target)
    with pytest.raises(CheckpointError, match="markov_rank is missing"):
        DSparkHead.read_config(tmp_path / "flash", target)
