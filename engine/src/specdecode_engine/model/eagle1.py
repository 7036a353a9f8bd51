"""The EAGLE-1 head, which is EAGLE-2's too: it foresees the target's own last hidden state.

Sources: Li et al., "EAGLE", 2024, and "EAGLE-2", 2024. A row pairs the target's last hidden state
at position i, after the final norm, with the token at i + 1, has rotary position i, and its output
stands for the target's hidden state at i + 1. So the output is scored by the target's own head,
and is what the row after a drafted token reads.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_engine.model.checkpoint import Checkpoint, Placement, Shape
from specdecode_engine.model.eagle1_config import Eagle1Config
from specdecode_engine.model.eagle_head import AuxHiddenStates, DraftHidden
from specdecode_engine.model.kv_views import KVView
from specdecode_engine.model.layers import DecoderLayer, Linear
from specdecode_engine.model.linears import Linears
from specdecode_engine.model.llama import Llama, widened
from specdecode_engine.model.rope import Angles, build_angles
from specdecode_engine.model.weights import Weights, decoder_shapes, linear_shapes

EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True, eq=False)
class Eagle1Head:
    """The head with its weights; its cache is the caller's.

    Published files may repeat the target's embedding and head. What equals the target's is shared
    with it, so that it takes no memory; what differs is used, since the draft was trained with it.
    """

    config: Eagle1Config
    embedding: Tensor  # [vocab, hidden]
    pair: Linear  # [hidden, 2 * hidden]: the token's embedding first, then the hidden state
    layers: tuple[DecoderLayer, ...]  # the first has no norm before attention
    head: Linear  # [vocab, hidden]
    angles: Angles

    @classmethod
    def load(
        cls,
        folder: Path,
        target: Llama,
        *,
        progress: bool = False,
        linears: Linears | None = None,
    ) -> "Eagle1Head":
        """Load a head in the target's type, onto its device and for its length.

        Rotary frequencies are the head's own, which it was trained with. The number of tabulated
        positions follows the target; the head's max_position_embeddings is ignored.
        """
        config = Eagle1Config.load(folder, target.config)
        checkpoint = Checkpoint.open(folder)
        checkpoint.check(*_shapes(config))
        placement = Placement(target.dtype, target.device)
        angles = build_angles(
            config.rope, config.decoder.head_dim, target.context_length, target.dtype, target.device
        )
        tensors = checkpoint.read(placement, label=f"loading {folder.name}", progress=progress)
        weights = Weights(tensors, linears or Linears())
        names = (f"layers.{number}" for number in range(config.num_hidden_layers))
        return cls(
            config=config,
            embedding=weights.take_or_share(EMBEDDING, target.embedding),
            pair=weights.linear("fc"),
            layers=tuple(weights.decoder_layer(name, config.decoder) for name in names),
            head=weights.linear_or_share("lm_head", target.head),
            angles=angles,
        )

    @property
    def aux_spec(self) -> AuxHiddenStates:
        """What the head reads of the target."""
        return AuxHiddenStates(final=True)

    @property
    def draft_to_target(self) -> Tensor | None:
        """None: the vocabulary is the target's."""
        return None

    def fuse(self, aux_hidden_states: Tensor) -> Tensor:
        """Hand on captured hidden states [rows, hidden] in the head's type."""
        return aux_hidden_states.to(self.pair.weight.dtype)

    def forward(self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: KVView) -> DraftHidden:
        """Run rows: ids [rows] i64, hidden [rows, hidden]."""
        token = functional.embedding(ids, self.embedding).to(hidden.dtype)
        x = self.pair(torch.cat((token, hidden), dim=-1))
        angles = self.angles.at(positions)
        for number, layer in enumerate(self.layers):
            x = layer(x, angles, number, kv)
        return DraftHidden(x, x)

    def logits(self, normed: Tensor) -> Tensor:
        """Score the vocabulary: [rows, vocab] f32, or f64 for such a head."""
        return widened(self.head(normed))


def _shapes(config: Eagle1Config) -> tuple[dict[str, Shape], dict[str, Shape]]:
    # Required and optional tensors.
    hidden, vocab = config.decoder.hidden_size, config.vocab_size
    required = linear_shapes("fc", hidden, 2 * hidden, config.bias)
    for number in range(config.num_hidden_layers):
        required |= decoder_shapes(
            f"layers.{number}", config.decoder, hidden, input_norm=number > 0
        )
    return required, {EMBEDDING: (vocab, hidden), HEAD: (vocab, hidden)}
