"""Attention of transformers' modules over the KV view of the current forward."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from specdecode_engine.model.kv.delta_states import DeltaView
from specdecode_engine.model.kv.kv_views import KVView
from specdecode_engine.model.kv.layer_map import LayerMap
from specdecode_engine.model.target.transformers_config import UnsupportedModel
from specdecode_kernels.metadata import DEFAULT_ATTENTION, AttentionParams

IMPLEMENTATION = "specdecode_paged"
"""Name under which the attention is registered in transformers."""

PARAMETERS = frozenset({"scaling", "softcap", "sliding_window", "s_aux"})
"""Arguments of an attention function that describe what it computes, and that we compute."""

WITHOUT_EFFECT = frozenset(
    {
        "dropout",  # 0 outside of training
        "is_causal",  # checked on the module
        "position_ids",  # the view has the rows' positions
        "cache_position",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "logits_to_keep",
        "attention_mask",
        "layer_idx",
        "layer_type",
    }
)
"""Arguments that change nothing in a forward of ours."""


CACHES = frozenset({"past_key_values", "cache"})
"""Names of the cache of transformers, which a forward of ours has none of: from 5.24 on `cache`."""


class ForwardState:
    """What the modules of one network read while it computes a forward.

    `view` shows keys and values, `delta` the states of recurrent layers, if the network has any.
    """

    def __init__(self) -> None:
        self.view: KVView | None = None
        self.delta: DeltaView | None = None


@dataclass(slots=True, eq=False)
class PagedAttention:
    """The attention of one layer; its parameters are read in its first call."""

    state: ForwardState
    layer: int
    path: str  # of its module, for errors
    chunk_size: int | None = None  # which transformers writes into its masks, and nowhere else
    is_latent: bool = False
    params: AttentionParams | None = None

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: object,
        arguments: Mapping[str, Any],
    ) -> Tensor:
        """Attend from query [1, q_heads, rows, dim]; key and value are [1, kv_heads, rows, dim]."""
        if self.params is None:
            self._check(module, mask, arguments)
            self.params = read_params(arguments, query.shape[-1], self.chunk_size)
        assert self.state.view is not None
        q, k, v = (rows[0].transpose(0, 1) for rows in (query, key, value))
        return self.state.view.attend(self.layer, q, k, v, self.params)[None]

    def _check(self, module: nn.Module, mask: object, arguments: Mapping[str, Any]) -> None:
        """Raise if attention depends on anything that we would leave out."""
        known = PARAMETERS | WITHOUT_EFFECT
        unknown = sorted(
            name for name, value in arguments.items() if value is not None and name not in known
        )
        if unknown:
            raise UnsupportedModel(
                f"{self.path} gives attention the unknown arguments {', '.join(unknown)}; this "
                "model type is not supported"
            )
        if mask is not None or not getattr(module, "is_causal", True):
            raise UnsupportedModel(
                f"{self.path} does not attend causally; this model type is not supported"
            )


def read_params(
    arguments: Mapping[str, Any], head_dim: int, chunk_size: int | None = None
) -> AttentionParams:
    """Translate the arguments of an attention function of transformers."""
    scale, sinks = arguments.get("scaling"), arguments.get("s_aux")
    scale = None if scale is None or scale == head_dim**-0.5 else float(scale)
    softcap, window = arguments.get("softcap"), arguments.get("sliding_window")
    if scale is softcap is window is chunk_size is sinks is None:
        return DEFAULT_ATTENTION
    return AttentionParams(
        scale=scale,
        logit_softcap=softcap,
        sliding_window=window,
        attention_chunk_size=chunk_size,
        sinks=None if sinks is None else sinks.detach().float(),
    )


def attach(network: nn.Module, state: ForwardState, layer_map: LayerMap) -> None:
    """Give every attention module its layer of the cache.

    Raises:
        UnsupportedModel: they are not one for each layer.
    """
    modules = [
        (path, module)
        for path, module in network.named_modules()
        if "Attention" in type(module).__name__ and isinstance(_layer_index(module), int)
    ]
    modules.sort(key=lambda one: _layer_index(one[1]))
    numbers = {_layer_index(module) for _, module in modules}
    if len(modules) != len(layer_map.layers) or len(numbers) != len(modules):
        raise UnsupportedModel(
            f"the network has {len(modules)} attention modules for its {len(layer_map.layers)} "
            "layers with attention; this model type is not supported"
        )
    for layer, (path, module) in enumerate(modules):
        spec = layer_map.layers[layer]
        module.paged_attention = PagedAttention(
            state, layer, path, spec.attention_chunk_size, spec.is_latent
        )


def _layer_index(module: nn.Module) -> Any:
    return getattr(module, "layer_idx", None)


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: object,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """The attention function of transformers' interface."""
    attention = module.paged_attention
    assert isinstance(attention, PagedAttention)
    return attention(module, query, key, value, attention_mask, arguments), None


def register() -> None:
    """Make `paged_attention` known to transformers; without a mask function no mask is built."""
    from transformers import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, paged_attention)
