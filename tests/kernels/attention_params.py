"""Random features of attention: scale, softcap, window or chunk, sinks, a head size of values."""

import random
from dataclasses import replace

from specdecode_kernels import AttentionParams
from specdecode_kernels.testing import Shape


def draw_params(shape: Shape, chance: random.Random) -> Shape:
    """Give a shape each feature with a chance of one half."""
    has_chunks = chance.random() < 0.5
    reach = chance.choice((None, 1, 2, 3, 4, shape.longest))
    params = AttentionParams(
        scale=chance.choice((None, 0.2, 1.0)),
        logit_softcap=chance.choice((None, 0.7, 3.0)),
        sliding_window=None if has_chunks else reach,
        attention_chunk_size=reach if has_chunks else None,
    )
    v_dim = chance.choice((None, shape.dim // 2, shape.dim + 5))
    if shape.is_latent:
        v_dim = shape.v_dim
    return replace(shape, params=params, v_dim=v_dim, has_sinks=chance.random() < 0.5)
