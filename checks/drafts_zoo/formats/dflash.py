"""DFlash: a block of tokens in one forward, over context rows of projected hidden states.

Sources: vLLM's `qwen3_dflash` and transformers' `MuseGlimmerAssistantModel`.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from checks.drafts_zoo.files import read_tensors, write_checkpoint
from checks.drafts_zoo.fitting import fit
from checks.drafts_zoo.format import DraftFiles, DraftFormat, block_drafter_state
from checks.drafts_zoo.slow_layers import (
    LayerSizes,
    Tensors,
    draw_layer,
    draw_map,
    draw_norm,
    linear,
    mlp,
    rms_norm,
)
from checks.drafts_zoo.targets import VOCAB, SlowTarget, write_target
from specdecode_api.speculation import Algorithm

SIZES = LayerSizes(rope_theta=1_000_000.0)
LAYERS, BLOCK, MASK_ID = 2, 11, VOCAB - 1
READ = (0, 1)  # layers of the target
LAST = (0, 2)  # its last one among them
ANCHOR_STEP = 3  # between the bonus tokens that a draft is fitted on
SPECULATORS = {
    "speculators_model_type": "dflash",
    "transformer_layer_config": {"model_type": "qwen3"},
    "aux_hidden_state_layer_ids": [layer + 1 for layer in reversed(LAST)],  # boundaries
    "dflash_config": None,
    "mask_token_id": MASK_ID,
    "sample_from_anchor": True,
}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 12}


def _write(
    kind: type["DFlashReference"], keys: Mapping[str, object], folder: Path, seed: int
) -> DraftFiles:
    files = DraftFiles(folder / "target", folder / "draft")
    write_target(files.target)
    tensors = draw_backbone(torch.Generator().manual_seed(seed))
    head = kind(SlowTarget(files.target), tensors, "layer_types" in keys)
    write_fitted(folder / "draft", head, tensors, {"architectures": ["DFlashDraftModel"], **keys})
    return files


def draw_backbone(generator: torch.Generator) -> Tensors:
    """Draw what drafts of blocks have in common."""
    hidden = SIZES.hidden_size
    tensors = {
        "fc.weight": draw_map((hidden, len(READ) * hidden), generator),
        "hidden_norm.weight": draw_norm(hidden, generator),
        "norm.weight": draw_norm(hidden, generator),
    }
    for layer in range(LAYERS):
        tensors |= draw_layer(f"layers.{layer}", SIZES, generator, qk_norm=True)
    return tensors


def write_fitted(
    folder: Path, head: "DFlashReference", tensors: Tensors, keys: Mapping[str, object]
) -> None:
    """Fit a draft to what its target answers, and write it."""
    texts = head.target.answered_prompts()
    config = {
        **asdict(SIZES),
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 8,  # the target's length counts
        "hidden_act": "silu",
        "block_size": BLOCK,
        "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": list(READ)},
        **keys,
    }
    write_checkpoint(folder, config, fit(tensors, lambda w: head.loss(w, texts)))


class DFlashReference:
    """Row r of a block predicts the token r positions after the bonus token."""

    first_row = 1  # that predicts a token
    read: tuple[int, ...] = READ

    def __init__(self, target: SlowTarget, tensors: Tensors, has_windows: bool) -> None:
        self.target = target
        self.rows = BLOCK  # of a block
        self._tensors = {name: tensor.double() for name, tensor in tensors.items()}
        # Of each layer: positions that a row sees back from its own, and whether it sees no later.
        self._layers = [(12, True), (None, False)] if has_windows else [(None, False)] * LAYERS
        self._embedding: Tensor = target.model.get_input_embeddings().weight.detach()
        self._scores: Tensor = target.model.get_output_embeddings().weight.detach()

    @classmethod
    def open(cls, has_windows: bool, files: DraftFiles) -> "DFlashReference":
        assert files.draft is not None
        return cls(SlowTarget(files.target), read_tensors(files.draft), has_windows)

    def shortened(self, num_steps: int) -> Self:
        """Return a reference whose blocks have the rows that draft so many tokens."""
        short = copy(self)
        short.rows = num_steps + self.first_row
        return short

    def next_logits(self, committed: Sequence[int], drafted: Sequence[int]) -> Tensor | None:
        if len(drafted) >= self.rows - self.first_row:
            return None
        before = torch.tensor([committed[-1], *drafted])
        return self._logits(self._tensors, self._rows_after(committed), before[None])[0, -1]

    def _rows_after(self, committed: Sequence[int]) -> Tensor:
        """Compute the rows that draft tokens after the last of `committed`, [1, n, hidden]."""
        aux = self.target.states(tuple(committed[:-1])).side_by_side(self.read)
        anchors = torch.tensor([len(committed) - 1])
        rows = self._blocks(self._tensors, aux, torch.tensor(committed), anchors)
        return rows[:, self.first_row :]

    def loss(self, w: Tensors, texts: Sequence[tuple[int, ...]]) -> Tensor:
        """Cross entropy of the tokens after bonus tokens all over the texts."""
        total = torch.zeros((), dtype=torch.float64)
        for text in texts:
            ids, aux = torch.tensor(text), self.target.states(text).side_by_side(self.read)
            anchors = torch.arange(2, len(text) - BLOCK, ANCHOR_STEP)
            rows = self._blocks(w, aux, ids, anchors)[:, self.first_row :]
            known = ids[anchors[:, None] + torch.arange(rows.shape[1] + 1)]
            logits = self._logits(w, rows, known[:, :-1])
            total = total + cross_entropy(logits.flatten(0, 1), known[:, 1:].flatten())
        return total

    def _logits(self, w: Tensors, rows: Tensor, before: Tensor) -> Tensor:
        """Score the tokens after each of `before` [blocks, n], from the first n rows of blocks."""
        return rows[:, : before.shape[1]] @ self._scores.T

    def _blocks(self, w: Tensors, aux: Tensor, ids: Tensor, anchors: Tensor) -> Tensor:
        """Compute the block after each of some bonus tokens [anchors, rows, hidden].

        Args:
            aux: the target's hidden states of the text [T, width].
            anchors: positions of the bonus tokens.
        """
        eps, rows, known = SIZES.rms_norm_eps, self.rows, torch.arange(len(aux))
        context = rms_norm(linear(w, "fc", aux), w["hidden_norm.weight"], eps)
        tokens = torch.full((len(anchors), rows), MASK_ID)
        tokens[:, 0] = ids[anchors]
        x = self._embedding[tokens.flatten()]
        positions = (anchors[:, None] + torch.arange(rows)).flatten()
        block = torch.arange(len(anchors)).repeat_interleave(rows)
        own = block[:, None] == block
        seen = torch.cat((known < anchors[block][:, None], own), dim=1)
        key_positions = torch.cat((known, positions))
        for number, (window, is_causal) in enumerate(self._layers):
            distance = positions[:, None] - key_positions
            shown = seen & (distance < (window or len(ids) + rows))
            shown &= (distance >= 0) | (not is_causal)
            x = _layer(w, f"layers.{number}", context, x, key_positions, shown)
        return rms_norm(x, w["norm.weight"], eps).view(len(anchors), rows, -1)


class AnchoredReference(DFlashReference):
    """Row r of a block predicts the token r + 1 positions after the bonus token."""

    first_row = 0
    read = LAST


def _layer(
    w: Tensors, prefix: str, context: Tensor, x: Tensor, key_positions: Tensor, shown: Tensor
) -> Tensor:
    """Compute one layer; queries are the rows of blocks, keys those of context and blocks.

    Args:
        key_positions: positions of the keys.
        shown: [rows, keys] bool.
    """
    eps, dim = SIZES.rms_norm_eps, SIZES.head_dim
    attention = f"{prefix}.self_attn"
    read = rms_norm(x, w[f"{prefix}.input_layernorm.weight"], eps)
    keys = torch.cat((context, read))
    q = linear(w, f"{attention}.q_proj", read).view(len(x), -1, dim)
    k = linear(w, f"{attention}.k_proj", keys).view(len(keys), -1, dim)
    v = linear(w, f"{attention}.v_proj", keys).view(len(keys), -1, dim)
    q = _rotated(rms_norm(q, w[f"{attention}.q_norm.weight"], eps), key_positions[len(context) :])
    k = _rotated(rms_norm(k, w[f"{attention}.k_norm.weight"], eps), key_positions)
    groups = SIZES.num_attention_heads // SIZES.num_key_value_heads
    k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * dim**-0.5
    weights = scores.masked_fill(~shown, -torch.inf).softmax(-1)
    x = x + linear(w, f"{attention}.o_proj", torch.einsum("hij,jhd->ihd", weights, v).flatten(1))
    normed = rms_norm(x, w[f"{prefix}.post_attention_layernorm.weight"], eps)
    return x + mlp(w, f"{prefix}.mlp", SIZES, normed)


def _rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate x [rows, heads, dim] at any positions: number j with number j + dim / 2."""
    half = x.shape[-1] // 2
    frequencies = SIZES.rope_theta ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(positions.double(), frequencies)[:, None]
    first, second = x[..., :half], x[..., half:]
    turned = (
        first * angles.cos() - second * angles.sin(),
        second * angles.cos() + first * angles.sin(),
    )
    return torch.cat(turned, dim=-1)


FORMATS = tuple(
    DraftFormat(
        name=name,
        algorithm=Algorithm.DFLASH,
        write=partial(_write, kind, keys),
        reference=partial(kind.open, "layer_types" in keys),
        state=block_drafter_state,
    )
    for name, kind, keys in (
        ("dflash", DFlashReference, {}),
        ("dflash-causal-swa", DFlashReference, WINDOWS),
        ("dflash-speculators", AnchoredReference, SPECULATORS),
    )
)
