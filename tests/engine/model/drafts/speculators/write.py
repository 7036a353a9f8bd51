"""Writes the drafts of this folder with speculators, and the logits that it computes.

Speculators is not locked with this project, since it pins other versions; it was run on a CPU in
an environment of its own:

    uv pip install speculators==0.9.0 torch==2.14.1 transformers==5.19.0
    python tests/engine/model/drafts/speculators/write.py

`expected.safetensors` of a draft has a text, and the logits after each of its tokens or of one
block. Hidden states are those that the target has at the draft's boundaries, by layer, as vLLM
concatenates them for the training of speculators' drafts.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import speculators.models.dflash.core as blocks
import torch
from safetensors.torch import load_file, save_file
from speculators.convert.mtp import MTP_EXACT_REMAP, MTP_PREFIX_REMAP
from speculators.models.dflash2.core import DFlash2DraftModel
from speculators.models.dspark.core import DSparkDraftModel
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.models.mtp import MTPDraftModel
from speculators.models.mtp.model_definitions import Qwen3MTPLayer
from speculators.models.xpress.core import XPressDraftModel
from torch import Tensor
from transformers import LlamaConfig, Qwen3Config, Qwen3ForCausalLM

HERE = Path(__file__).parent
VOCAB, HIDDEN, LAYERS = 64, 32, 3
LENGTH, BLOCK, BONUS = 16, 4, 11  # of a text, of a block, and where the block begins
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
BLOCKS: dict[str, tuple[type[Any], list[int], dict[str, Any]]] = {
    "dflash": (blocks.DFlashDraftModel, [1, 3], {"sample_from_anchor": True}),
    "dspark": (
        DSparkDraftModel,
        [2, 0],
        {"markov_rank": 0, "confidence_head_with_markov": False, "sample_from_anchor": False},
    ),
}
REFUSED: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "dflash2": (DFlash2DraftModel, {"selector_rank": 4}),
    "xpress": (XPressDraftModel, {"xpress_rank": 4}),
}


def randomise(model: Any, *kept: str) -> None:
    """Draw all parameters but those that are kept or the target's."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if not name.startswith(("verifier", *kept)):
                one.copy_(torch.randn(one.shape, generator=generator) * 0.2 + (one.dim() == 1))


def states(target: Any, ids: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return what a target of LAYERS layers has at each boundary, and after its final norm."""
    found: list[Tensor] = []
    handles = [
        layer.register_forward_hook(lambda module, inputs, output: found.append(output))
        for layer in target.model.layers
    ]
    with torch.no_grad():
        outputs = target.model(ids[None], output_hidden_states=True)
    for handle in handles:
        handle.remove()
    return [outputs.hidden_states[0], *found], outputs.last_hidden_state


def finish(name: str, model: Any, ids: Tensor, logits: Tensor) -> None:
    """Save a draft, without the code that speculators puts next to it."""
    model.save_pretrained(HERE / name)
    (HERE / name / "config.py").unlink(missing_ok=True)
    expected = {"ids": ids.clone(), "logits": logits.contiguous()}
    save_file(expected, HERE / name / "expected.safetensors")


def write_eagle3(folder: Path, target: Any, ids: Tensor) -> None:
    """An activation of Gemma, and boundaries from the first to the last, in no order."""
    known = torch.arange(0, VOCAB, 2)
    marked = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, known, True)
    model = Eagle3DraftModel.from_training_args(
        LlamaConfig(**SIZES, num_hidden_layers=1, hidden_act="gelu_pytorch_tanh"),
        t2d=marked,
        d2t=known - torch.arange(len(known)),
        draft_vocab_size=len(known),
        verifier_name_or_path=str(folder),
        target_layer_ids=[LAYERS, 0, 2],
        ttt_steps=1,
        norm_before_residual=True,
        draft_attn_impl="eager",
    )
    randomise(model, "embed_tokens")
    hidden = torch.cat([states(target, ids)[0][at] for at in (0, 2, LAYERS)], dim=-1)
    logits: list[Tensor] = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: logits.append(output[0]))
    pairs = ids[None, 1:], torch.zeros(1, LENGTH - 1, dtype=torch.long)
    with torch.no_grad():
        model.eval()(hidden[:, :-1], pairs[0], document_ids=pairs[1], ttt_steps=1)
    finish("eagle3", model, ids, logits[0])


def make_block(kind: type[Any], folder: Path, boundaries: list[int], keys: dict[str, Any]) -> Any:
    model = kind.from_training_args(
        Qwen3Config(**SIZES, num_hidden_layers=1),
        t2d=None,
        d2t=None,
        draft_vocab_size=VOCAB,
        verifier_name_or_path=str(folder),
        target_layer_ids=boundaries,
        block_size=BLOCK,
        mask_token_id=VOCAB - 1,
        draft_attn_impl="eager",
        **keys,
    )
    randomise(model, "embed_tokens", "lm_head")
    return model.eval()


def write_block(name: str, folder: Path, target: Any, ids: Tensor) -> None:
    """The rows of one block."""
    kind, boundaries, keys = BLOCKS[name]
    model = make_block(kind, folder, boundaries, keys)
    found, final = states(target, ids)
    hidden = torch.cat([found[at] for at in sorted(boundaries)], dim=-1)
    blocks.select_anchors = lambda *_: (torch.tensor([BONUS]), torch.tensor([True]))
    mask, documents = torch.ones(1, LENGTH), torch.zeros(1, LENGTH, dtype=torch.long)
    inputs = hidden, ids[None], mask, final, documents, None
    with torch.no_grad():
        logits = model._backbone_forward(*inputs, max_anchors=1)[1][0]
    finish(name, model, ids, logits)


def write_refused(name: str, folder: Path) -> None:
    """config.json alone."""
    kind, keys = REFUSED[name]
    make_block(kind, folder, [1, 2], keys).save_pretrained(folder / name)
    (HERE / name).mkdir(exist_ok=True)
    shutil.copy(folder / name / "config.json", HERE / name)


def add_module(folder: Path) -> None:
    """Give the target a module, which speculators extracts."""
    layer = Qwen3MTPLayer(Qwen3Config.from_pretrained(folder), 0)
    randomise(layer)
    names = {new: old for old, new in MTP_PREFIX_REMAP}
    whole = {new: old for old, new in MTP_EXACT_REMAP.items()}
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in layer.state_dict().items():
        own = f"mtp_layers.0.{name}"
        start = next((one for one in names if own.startswith(one)), own)
        tensors[whole.get(own, names.get(start, start) + own.removeprefix(start))] = tensor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_mtp(folder: Path, target: Any, ids: Tensor) -> None:
    """A module apart from its target, which speculators fine-tunes."""
    add_module(folder)
    model = MTPDraftModel.from_training_args(
        Qwen3Config.from_pretrained(folder),
        num_speculative_steps=2,
        verifier_name_or_path=str(folder),
    ).eval()
    with torch.no_grad():
        logits = model(ids[None], states(target, ids)[1])[0][0][0]
    finish("mtp", model, ids, logits)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = Qwen3Config(**SIZES, num_hidden_layers=LAYERS, initializer_range=0.2)
    target: Any = Qwen3ForCausalLM(config)
    target.eval()
    target.save_pretrained(HERE / "target")
    ids = torch.randint(0, VOCAB - 1, (LENGTH,))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(shutil.copytree(HERE / "target", Path(place) / "target"))
        write_eagle3(folder, target, ids)
        for name in BLOCKS:
            write_block(name, folder, target, ids)
        for name in REFUSED:
            write_refused(name, folder)
        write_mtp(folder, target, ids)
    for file in HERE.glob("*/config.json"):  # without the path of the target's folder
        keys = json.loads(file.read_text())
        if "speculators_config" in keys:
            keys["speculators_config"]["verifier"]["name_or_path"] = "target"
            file.write_text(json.dumps(keys, indent=2) + "\n")


if __name__ == "__main__":
    main()
