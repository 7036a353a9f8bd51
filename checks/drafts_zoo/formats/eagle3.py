"""EAGLE-3 as its writers publish it: one layer or several, own windows, names and switches.

Sources: Li et al., "EAGLE-3", 2025; the authors' checkpoints; vllm-project/speculators.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from checks.drafts_zoo.files import read_tensors, write_checkpoint
from checks.drafts_zoo.fitting import fit
from checks.drafts_zoo.format import DraftFiles, DraftFormat
from checks.drafts_zoo.slow_layers import (
    LayerSizes,
    Tensors,
    decoder_layer,
    draw_layer,
    draw_map,
    draw_norm,
    linear,
    rms_norm,
)
from checks.drafts_zoo.targets import VOCAB, SlowTarget, answer_tokens, write_target
from specdecode_api.speculation import Algorithm

SIZES = LayerSizes()
TARGET_HIDDEN = 64
DRAFT_VOCAB = 60
AUX_LAYERS = (0, 1, 2)  # of the target's three
EMBEDDED = -1
MAX_POSITIONS = 8  # the target's length counts, not the head's
Keys = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Layout:
    """A published layout: how its files and its computation differ from the authors' head."""

    keys: Mapping[str, object]  # of config.json, over the layer's sizes
    sizes: LayerSizes = SIZES
    aux: tuple[int, ...] = AUX_LAYERS
    first: str = "midlayer"  # name of the first layer
    layers: int = 1
    window: int | None = None
    qk_norm: bool = False
    biases: tuple[str, ...] = ()
    logit_scale: float = 1.0
    norm_before_residual: bool = False
    has_embedding: bool = False
    is_pickle: bool = False
    nested: tuple[str, ...] = field(default=())  # keys in `transformer_layer_config`

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Names of the layers."""
        return (self.first, *(f"layers.{number}" for number in range(1, self.layers)))

    @property
    def optional(self) -> frozenset[str]:
        """Tensors that may be absent; the target's embedding serves heads of its width."""
        is_of_target = self.sizes.hidden_size == TARGET_HIDDEN
        return frozenset({"t2d", "embed_tokens.weight"} if is_of_target else {"t2d"})

    def config(self) -> Keys:
        """Return config.json."""
        layer: Keys = {
            **asdict(self.sizes),
            "num_hidden_layers": self.layers,
            "vocab_size": VOCAB,
            "max_position_embeddings": MAX_POSITIONS,
        }
        if not self.nested:
            return {**layer, "draft_vocab_size": DRAFT_VOCAB, **self.keys}
        outer = {name: value for name, value in self.keys.items() if name not in self.nested}
        layer |= {name: self.keys[name] for name in self.nested}
        return {"draft_vocab_size": DRAFT_VOCAB, **outer, "transformer_layer_config": layer}

    def draw(self, seed: int, known: Sequence[int]) -> Tensors:
        """Draw the tensors of a head whose vocabulary has the tokens `known`, among others."""
        generator = torch.Generator().manual_seed(seed)
        sizes, hidden = self.sizes, self.sizes.hidden_size
        width = len(self.aux) * TARGET_HIDDEN
        tensors = {"fc.weight": draw_map((hidden, width), generator)}
        for number, prefix in enumerate(self.prefixes):
            norms = ("input_layernorm", "post_attention_layernorm")
            tensors |= draw_layer(
                prefix,
                sizes,
                generator,
                inputs=hidden if number else 2 * hidden,
                norms=norms if number else (*norms, "hidden_norm"),
                qk_norm=self.qk_norm,
                biases=self.biases,
            )
        others = [token for token in range(VOCAB) if token not in known]
        ids = torch.tensor(sorted([*known, *others][:DRAFT_VOCAB]))
        tensors |= {
            "norm.weight": draw_norm(hidden, generator),
            "lm_head.weight": draw_map((DRAFT_VOCAB, hidden), generator),
            "d2t": ids - torch.arange(DRAFT_VOCAB),
            "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True),
        }
        if self.has_embedding:
            tensors["embed_tokens.weight"] = torch.randn(VOCAB, hidden, generator=generator)
        return tensors


class Eagle3Reference:
    """Row i pairs aux hidden states at i, or the row before's output, with token i + 1."""

    def __init__(self, layout: Eagle3Layout, target: SlowTarget, tensors: Tensors) -> None:
        self.target = target
        self._layout = layout
        self._tensors = {
            name: tensor.double() if tensor.is_floating_point() else tensor
            for name, tensor in tensors.items()
        }
        self._ids = torch.arange(DRAFT_VOCAB) + tensors["d2t"]
        self._shared = target.model.get_input_embeddings().weight.detach()

    @classmethod
    def open(cls, layout: Eagle3Layout, files: DraftFiles) -> "Eagle3Reference":
        assert files.draft is not None
        return cls(layout, SlowTarget(files.target), read_tensors(files.draft))

    def next_logits(self, committed: Sequence[int], drafted: Sequence[int]) -> Tensor:
        w, ids = self._tensors, torch.tensor([*committed, *drafted])
        states = self.target.states(tuple(committed[:-1]))
        hidden = linear(w, "fc", states.side_by_side(self._layout.aux))
        for end in range(len(committed), len(ids) + 1):
            output = self._rows(w, ids[1:end], hidden)
            hidden = torch.cat((hidden, output[-1:]))
        scores = torch.full((VOCAB,), -torch.inf, dtype=torch.float64)
        return scores.index_copy(0, self._ids, self._logits(w, output[-1]))

    def _rows(self, w: Tensors, ids: Tensor, hidden: Tensor) -> Tensor:
        """What the next row reads, before the final norm, [rows, hidden]."""
        layout, eps = self._layout, self._layout.sizes.rms_norm_eps
        embedding = w.get("embed_tokens.weight", self._shared)
        token = rms_norm(embedding[ids], w[f"{layout.first}.input_layernorm.weight"], eps)
        normed = rms_norm(hidden, w[f"{layout.first}.hidden_norm.weight"], eps)
        x = normed if layout.norm_before_residual else hidden
        read: Tensor | None = torch.cat((token, normed), dim=-1)
        for prefix in layout.prefixes:
            x = decoder_layer(w, prefix, layout.sizes, x, read=read, window=layout.window)
            read = None
        return x

    def _logits(self, w: Tensors, rows: Tensor) -> Tensor:
        normed = rms_norm(rows, w["norm.weight"], self._layout.sizes.rms_norm_eps)
        return normed @ w["lm_head.weight"].T * self._layout.logit_scale

    def loss(self, w: Tensors, texts: Sequence[tuple[int, ...]]) -> Tensor:
        """Cross entropy of token i + 2 after row i, where the head knows that token."""
        draft_ids = torch.full((VOCAB,), -100).index_copy(0, self._ids, torch.arange(DRAFT_VOCAB))
        total = torch.zeros((), dtype=torch.float64)
        for text in texts:
            ids = torch.tensor(text)
            aux = self.target.states(text).side_by_side(self._layout.aux)[: len(text) - 2]
            logits = self._logits(w, self._rows(w, ids[1:-1], linear(w, "fc", aux)))
            total = total + cross_entropy(logits, draft_ids[ids[2:]])
        return total


def _write(layout: Eagle3Layout, folder: Path, seed: int) -> DraftFiles:
    files = DraftFiles(folder / "target", folder / "draft")
    write_target(files.target)
    target = SlowTarget(files.target)
    texts = target.answered_prompts()
    known = answer_tokens(texts)
    tensors = layout.draw(seed, known)
    head = Eagle3Reference(layout, target, tensors)
    fitted = fit(tensors, lambda w: head.loss(w, texts))
    write_checkpoint(folder / "draft", layout.config(), fitted, is_pickle=layout.is_pickle)
    return files


LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
AUTHORS: Keys = {
    "architectures": ["LlamaForCausalLMEagle3"],
    LAYER_IDS: list(AUX_LAYERS),
}
SPECULATORS: Keys = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "some/target"},
    },
    LAYER_IDS: [layer + 1 for layer in AUX_LAYERS],  # boundaries
    "norm_before_residual": True,
    "target_hidden_size": None,
    "model_type": "qwen3",
}
ALL_MAPS = tuple(f"{part}_proj" for part in ("q", "k", "v", "o", "gate", "up", "down"))
LAYOUTS = {
    "eagle3-safeai": Eagle3Layout(keys=AUTHORS),
    "eagle3-speculators": Eagle3Layout(
        keys=SPECULATORS,
        nested=("model_type",),
        first="layers.0",
        qk_norm=True,
        norm_before_residual=True,
        has_embedding=True,
    ),
    "eagle3-boundaries": Eagle3Layout(
        keys={**SPECULATORS, LAYER_IDS: [3, 0], "model_type": "llama"},
        sizes=LayerSizes(hidden_act="gelu_pytorch_tanh"),
        aux=(EMBEDDED, 2),
        nested=("model_type",),
        first="layers.0",
        norm_before_residual=True,
    ),
    "eagle3-2layer": Eagle3Layout(
        keys={
            **AUTHORS,
            "attention_bias": True,
            "mlp_bias": True,
            "logit_scale": 0.5,
            "target_hidden_size": TARGET_HIDDEN,
        },
        sizes=LayerSizes(hidden_size=48),
        has_embedding=True,
        first="layers.0",
        layers=2,
        biases=ALL_MAPS,
        logit_scale=0.5,
    ),
    "eagle3-window-bin": Eagle3Layout(
        keys={**AUTHORS, "sliding_window": 6}, window=6, is_pickle=True
    ),
}
FORMATS = tuple(
    DraftFormat(
        name=name,
        algorithm=Algorithm.EAGLE3,
        write=partial(_write, layout),
        reference=partial(Eagle3Reference.open, layout),
        optional=layout.optional,
    )
    for name, layout in LAYOUTS.items()
)
