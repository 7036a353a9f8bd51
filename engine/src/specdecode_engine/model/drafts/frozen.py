"""Drafts without keys and values of their own: they read the target's (Gemma 4 assistants).

A row reads a token t and a hidden state u of the target's width:

    x = P [scaled embedding of t ; u]      y = norm(layers(x))      next u = Q y

The head scores y. For the bonus token u is the target's, after its final norm, of the position
before. Layers have queries alone, and see what the target has computed, never a drafted token.

With ordered embeddings each centroid has equally many tokens, and those of the best centroids are
scored alone.

Sources: google/gemma-4 assistants; transformers, `Gemma4AssistantForCausalLM`.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specdecode_engine.batch.rotary_tables import RotaryLimits
from specdecode_engine.model.checkpoint.checkpoint import Shape, Shapes, TensorError
from specdecode_engine.model.checkpoint.config_file import ConfigFile
from specdecode_engine.model.drafts.draft_head import HiddenStateHead
from specdecode_engine.model.drafts.frozen_config import (
    ARCHITECTURES,
    FrozenConfig,
    FrozenLayer,
    Shortlist,
)
from specdecode_engine.model.kv.kv_cache import RotaryRows
from specdecode_engine.model.kv.kv_views import KVView
from specdecode_engine.model.layers.layers import (
    Attention,
    DecoderLayer,
    Linear,
    Norm,
    OutputNorms,
    QueryNorm,
    rotary_rows,
)
from specdecode_engine.model.layers.linears import MapKind
from specdecode_engine.model.layers.rope import build_angles
from specdecode_engine.model.target.language_model import LanguageModel, LanguageModelConfig
from specdecode_engine.model.target.weights import OUTPUT_NORMS, Weights, linear_shapes
from specdecode_kernels import AttentionParams

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
CENTROIDS = "masked_embedding.centroids"
ORDERING = "masked_embedding.token_ordering"
PIECE_BYTES = 64 << 20
"""Of the weights of scored tokens, which are gathered for a few rows at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class QueryLayer:
    """A decoder layer whose attention has queries alone."""

    layer: DecoderLayer[Attention]
    scalar: Tensor  # [1], of the layer's output
    angles: Tensor  # [2, rows of the rotary tables, head_dim / 2]


@dataclass(frozen=True, slots=True, eq=False)
class CentroidHead:
    """Scores the tokens of the best centroids; the head's rows lie in the order of centroids."""

    config: Shortlist
    centroids: Linear  # [centroids, hidden]
    ids: Tensor  # [centroids, tokens] i64

    def __call__(self, normed: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [rows, columns] and the tokens that these belong to, i64.

        Args:
            normed: [rows, hidden].
            head: [centroids * tokens, hidden].
        """
        chosen = self.centroids(normed).topk(self.config.chosen, dim=-1).indices
        weights = head.view(*self.ids.shape, -1)
        most = max(1, PIECE_BYTES // (self.config.columns * normed.shape[1] * head.itemsize))
        pieces = [
            torch.bmm(weights[some].flatten(1, 2), rows[:, :, None])[:, :, 0]
            for some, rows in zip(torch.split(chosen, most), torch.split(normed, most), strict=True)
        ]
        return torch.cat(pieces), self.ids[chosen].flatten(1)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FrozenHead(HiddenStateHead[FrozenConfig]):
    """Query layers over the target's keys and values."""

    embed: Callable[[Tensor], Tensor]  # the target's
    before: Linear  # [hidden, 2 * target's hidden]
    layers: tuple[QueryLayer, ...]
    norm: Norm
    after: Linear  # [target's hidden, hidden]
    shortlist: CentroidHead | None

    @classmethod
    def recognizes(cls, config: ConfigFile) -> bool:
        return config.architecture in ARCHITECTURES

    @classmethod
    def read_config(cls, folder: Path, target: LanguageModelConfig) -> FrozenConfig:
        return FrozenConfig.load(folder, target)

    @classmethod
    def shapes(
        cls, config: FrozenConfig, names: Collection[str], target: LanguageModelConfig
    ) -> tuple[Shapes, Shapes]:
        hidden, wide = config.decoder.hidden_size, config.target_hidden_size
        required: Shapes = {
            **linear_shapes("pre_projection", hidden, 2 * wide, bias=False),
            **linear_shapes("post_projection", wide, hidden, bias=False),
            "model.norm.weight": (hidden,),
        }
        for number, layer in enumerate(config.layers):
            required |= _layer_shapes(f"model.layers.{number}", config, layer)
        if config.shortlist is not None:
            required |= linear_shapes(CENTROIDS, config.shortlist.centroids, hidden, bias=False)
            required[ORDERING] = (config.vocab_size,)
        used, unused = (EMBEDDING, HEAD) if config.is_tied else (HEAD, EMBEDDING)
        vocabulary: Shape = (config.vocab_size, hidden)
        return {**required, used: vocabulary}, {unused: vocabulary}

    @classmethod
    def _assemble(
        cls,
        config: FrozenConfig,
        weights: Weights,
        limits: RotaryLimits,
        target: LanguageModel,
        folder: Path,
    ) -> "FrozenHead":
        layers = _read_layers(config, weights, limits)
        scores, shortlist = weights.take(EMBEDDING if config.is_tied else HEAD), None
        if config.shortlist is None:
            head = weights.linears.make(scores, kind=MapKind.HEAD)
        else:
            ids = _read_ordering(weights)
            head = Linear(weights.ops, scores[ids])
            by_centroid = ids.view(config.shortlist.centroids, -1)
            shortlist = CentroidHead(config.shortlist, weights.linear(CENTROIDS), by_centroid)
        return cls(
            config=config,
            embedding=target.embedding,
            head=head,
            rotary_limits=limits,
            angles=layers[0].angles,
            embed=target.embed,
            before=weights.linear("pre_projection"),
            layers=layers,
            norm=weights.norm("model.norm", config.decoder),
            after=weights.linear("post_projection"),
            shortlist=shortlist,
        )

    def fuse(self, aux_hidden_states: Tensor) -> Tensor:
        return aux_hidden_states

    def forward(
        self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: KVView
    ) -> tuple[Tensor, Tensor]:
        """Run rows: ids [rows] i64 of the target's vocabulary, hidden [rows, target's hidden].

        Returns:
            What `score` takes, and what the row after the drafted token reads as `hidden`.
        """
        x = self.before(torch.cat((self.embed(ids), hidden), dim=-1))
        turned: dict[int, RotaryRows] = {}  # by table: layers of one type share it
        for number, one in enumerate(self.layers):
            if id(one.angles) not in turned:
                turned[id(one.angles)] = rotary_rows(one.angles, positions)
            x = one.layer(x, turned[id(one.angles)], number, kv) * one.scalar
        normed = self.norm(x)
        return normed, self.after(normed)

    def score(self, normed: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return logits [rows, columns], and their tokens [rows, columns] i64; None: all in order.

        Args:
            normed: [rows, hidden].
        """
        if self.shortlist is None:
            return self.logits(normed), None
        return self.shortlist(normed, self.head.plain_weight())


def _layer_shapes(prefix: str, config: FrozenConfig, layer: FrozenLayer) -> Shapes:
    decoder, attention, mlp = config.decoder, f"{prefix}.self_attn", f"{prefix}.mlp"
    hidden, inner = decoder.hidden_size, decoder.intermediate_size
    queries, read = (
        decoder.num_attention_heads * dim
        for dim in (layer.shape.k_head_dim, layer.shape.v_head_dim)
    )
    return {
        **{f"{prefix}.{norm}.weight": (hidden,) for norm in ("input_layernorm", *OUTPUT_NORMS)},
        f"{prefix}.layer_scalar": (1,),
        f"{attention}.q_norm.weight": (layer.shape.k_head_dim,),
        **linear_shapes(f"{attention}.q_proj", queries, hidden, decoder.qkv_bias),
        **linear_shapes(f"{attention}.o_proj", hidden, read, decoder.output_bias),
        **linear_shapes(f"{mlp}.gate_proj", inner, hidden, bias=False),
        **linear_shapes(f"{mlp}.up_proj", inner, hidden, bias=False),
        **linear_shapes(f"{mlp}.down_proj", hidden, inner, bias=False),
    }


def _read_layers(
    config: FrozenConfig, weights: Weights, limits: RotaryLimits
) -> tuple[QueryLayer, ...]:
    placement, tables, layers = weights.placement, {}, []
    for number, layer in enumerate(config.layers):
        key = str(layer.rope), layer.shape.k_head_dim
        if key not in tables:
            tables[key] = build_angles(
                layer.rope, layer.shape.k_head_dim, limits, placement.dtype, placement.device
            )
        layers.append(_read_layer(f"model.layers.{number}", config, layer, weights, tables[key]))
    return tuple(layers)


def _read_layer(
    prefix: str, config: FrozenConfig, layer: FrozenLayer, weights: Weights, angles: Tensor
) -> QueryLayer:
    decoder, attention = config.decoder, f"{prefix}.self_attn"
    after_attention, before_mlp, after_mlp = (
        weights.norm(f"{prefix}.{name}", decoder) for name in OUTPUT_NORMS
    )
    return QueryLayer(
        DecoderLayer(
            input_norm=weights.norm(f"{prefix}.input_layernorm", decoder),
            attention=Attention(
                ops=weights.ops,
                qkv=weights.linear(f"{attention}.q_proj"),
                output=weights.linear(f"{attention}.o_proj"),
                q_heads=decoder.num_attention_heads,
                kv_heads=0,
                head_dim=layer.shape.k_head_dim,
                qk_norm=QueryNorm(weights.norm(f"{attention}.q_norm", decoder)),
                params=AttentionParams(
                    scale=decoder.attention_scale, sliding_window=layer.shape.sliding_window
                ),
            ),
            mlp_norm=before_mlp,
            mlp=weights.mlp(f"{prefix}.mlp", decoder),
            output_norms=OutputNorms(attention=after_attention, mlp=after_mlp),
        ),
        weights.take(f"{prefix}.layer_scalar"),
        angles,
    )


def _read_ordering(weights: Weights) -> Tensor:
    """Read the tokens in the order of centroids [vocab] i64, in which each has one place."""
    ids = weights.take(ORDERING)
    places = torch.arange(len(ids), device=ids.device)
    if ids.is_floating_point() or not torch.equal(ids.long().sort().values, places):
        fault = f"{ORDERING} does not have every token once"
        raise TensorError(weights.store.tensors[ORDERING].file, fault, "download it again")
    return ids.long()
