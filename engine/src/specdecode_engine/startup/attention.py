"""Parameters of a model's attention, known from its config alone, before weights are read."""

from dataclasses import dataclass, field

import torch

from specdecode_engine.model.drafts.draft_config import DraftConfig
from specdecode_engine.model.kv.layer_map import LayerShape
from specdecode_engine.model.target.transformers_config import TransformersConfig
from specdecode_engine.model.transformers.loading import make_network
from specdecode_kernels import DEFAULT_ATTENTION, AttentionParams


def layer_params(model: DraftConfig) -> dict[LayerShape, AttentionParams]:
    """Return what decides on kernels and on a backend, for each shape of layers; no scale.

    Sinks are on the meta device.
    """
    sinks = None
    if _has_sinks(model):
        heads = model.decoder.num_attention_heads
        sinks = torch.empty(heads, dtype=torch.float32, device="meta")
    return {
        shape: AttentionParams(
            sliding_window=shape.sliding_window,
            attention_chunk_size=shape.attention_chunk_size,
            logit_softcap=model.decoder.attention_softcap,
            sinks=sinks,
        )
        for shape in model.layer_map.shapes
    }


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """The heads of one model, and the parameters of its attention.

    Those of like heads are served by one backend, whatever windows and softcaps their layers have.
    """

    k_dim: int  # of the widest head of keys
    v_dim: int  # of the widest head of values
    has_sinks: bool
    is_latent: bool  # values are entries of keys
    layers: tuple[AttentionParams, ...] = field(compare=False)

    @classmethod
    def of(cls, model: DraftConfig, device: torch.device) -> "AttentionHeads":
        """Read what decides on a backend for this device; a CPU's take all parameters."""
        layers = layer_params(model).values() if device.type == "cuda" else [DEFAULT_ATTENTION]
        has_sinks = any(params.sinks is not None for params in layers)
        is_latent = all(shape.is_latent for shape in model.layer_map.shapes)
        return cls(*model.layer_map.head_dims, has_sinks, is_latent, tuple(layers))


def _has_sinks(model: DraftConfig) -> bool:
    """Whether layers have sinks: through transformers, tensors that config.json does not name."""
    if not isinstance(model, TransformersConfig):
        return model.decoder.sinks
    network = make_network(model, torch.float32)
    return any(name.endswith(".sinks") for name, _ in network.named_parameters())
