"""Recurrent layers as a text config of transformers describes them."""

from specdecode_engine.model.kv.delta_states import DeltaLayers
from specdecode_engine.model.kv.layer_map import CONVOLUTION, RECURRENT, LayerMapError
from specdecode_kernels import DeltaShape

MOST_HEADS, MOST_ENTRIES, MOST_WIDTH = 1024, 256, 16
"""Heads of a recurrent layer, entries of each, and inputs that its convolution reads."""


def read_delta_layers(config: object) -> DeltaLayers | None:
    """Read the recurrent layers of a text config of transformers; None without any.

    Raises:
        LayerMapError: sizes are missing or contradict each other, or layers are of several kinds.
    """
    types = getattr(config, "layer_types", None) or ()
    kinds = sorted(RECURRENT.intersection(types))
    if not kinds:
        return None
    if len(kinds) > 1:
        raise LayerMapError(f"layer_types has {' and '.join(kinds)}; one kind alone is supported")
    count = sum(kind in RECURRENT for kind in types)
    if count == len(types):
        raise LayerMapError(f"layer_types has {kinds[0]} alone; one layer at least must attend")
    if kinds == [CONVOLUTION]:
        return _convolutions(config, count)
    return _gated_delta_nets(config, count)


def _convolutions(config: object, count: int) -> DeltaLayers:
    """Read the short convolutions of LFM2, which convolve as many channels as a row has numbers."""
    width = positive(config, "conv_L_cache", MOST_WIDTH)
    if width == 1:
        raise LayerMapError(
            "conv_L_cache is 1; a convolution of one input has no state: 2 at least"
        )
    shape = DeltaShape.of_convolution(positive(config, "hidden_size"), width)
    return DeltaLayers(count, shape, bool(getattr(config, "conv_bias", False)))


def _gated_delta_nets(config: object, count: int) -> DeltaLayers:
    shape = DeltaShape(
        k_heads=positive(config, "linear_num_key_heads", MOST_HEADS),
        v_heads=positive(config, "linear_num_value_heads", MOST_HEADS),
        k_dim=positive(config, "linear_key_head_dim", MOST_ENTRIES),
        v_dim=positive(config, "linear_value_head_dim", MOST_ENTRIES),
        conv_width=positive(config, "linear_conv_kernel_dim", MOST_WIDTH),
    )
    if shape.v_heads % shape.k_heads:
        raise LayerMapError(
            f"linear_num_value_heads is {shape.v_heads}; it must be a multiple of the "
            f"{shape.k_heads} linear_num_key_heads"
        )
    return DeltaLayers(count, shape)


def positive(config: object, key: str, most: int | None = None) -> int:
    """Return a positive integer of a config.

    Raises:
        LayerMapError: it is none, or larger than `most`.
    """
    value = getattr(config, key, None)
    if not isinstance(value, int) or value < 1:
        raise LayerMapError(f"{key} is {value!r}; it must be a positive integer")
    if most is not None and value > most:
        raise LayerMapError(f"{key} is {value}; {most} at most are supported")
    return value
