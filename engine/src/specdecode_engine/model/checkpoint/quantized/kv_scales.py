"""Scales of keys and values that a quantized checkpoint has, for a KV cache in float8.

nvidia-modelopt stores them as `self_attn.k_proj.k_scale` and `self_attn.v_proj.v_scale` of no
dimension, compressed-tensors as `self_attn.k_scale` and `self_attn.v_scale` [1]. Entries of the
cache are keys and values divided by them. Of other layouts (a scale for each head) none is read.

Source: nvidia-modelopt 0.47, `export/quant_utils.py`; compressed-tensors 0.20,
`quantization/lifecycle/initialize.py`; read from what both wrote.
"""

import logging
import math
import re
from collections import defaultdict
from pathlib import Path

from specdecode_engine.model.checkpoint.checkpoint import Checkpoint, TensorError
from specdecode_kernels import KvScale

log = logging.getLogger(__name__)

LAYER = r"(?:(?:model|language_model|text_model)\.)*layers\.(\d+)\.self_attn\."
ATTENTION = re.compile(LAYER)
SCALE = re.compile(LAYER + r"(?:(?:k_proj\.)?(k)|(?:v_proj\.)?(v))_scale")
REMEDY = "quantize the KV cache again, or set the KV cache's type to auto"


def read_kv_scales(folder: Path, layers: int) -> tuple[KvScale, ...]:
    """Return the scales of each layer with attention; those that are missing are 1.

    Args:
        layers: with attention, in their order. A checkpoint may have more, such as MTP modules.

    Raises:
        TensorError: a scale has several values, or is not a positive number.
    """
    checkpoint = Checkpoint.open_quantized(folder)
    attention = (ATTENTION.match(name) for name in checkpoint.tensors)
    numbers = sorted({int(found[1]) for found in attention if found})[:layers]
    found = defaultdict[int, dict[str, float]](dict)
    for name in checkpoint.tensors:
        if match := SCALE.fullmatch(name):
            found[int(match[1])][match[2] or match[3]] = _read(checkpoint, name)
    scales = [KvScale(**found[number]) for number in numbers]
    scales += [KvScale()] * (layers - len(scales))
    missing = layers - sum(len(found[number]) == 2 for number in numbers)
    if missing:
        message = "%s: %d of %d layers lack scales of keys or values for the KV cache; they are 1"
        log.info(message, folder, missing, layers)
    return tuple(scales)


def _read(checkpoint: Checkpoint, name: str) -> float:
    shape = checkpoint.tensors[name].shape
    if math.prod(shape) != 1:
        fault = f"{name} is {list(shape)}; it must be one number"
        raise TensorError(checkpoint.folder, fault, REMEDY)
    scale = float(checkpoint.get(name).float().reshape(()))
    if not 0 < scale < math.inf:
        fault = f"{name} is {scale}; it must be a positive number"
        raise TensorError(checkpoint.folder, fault, REMEDY)
    return scale
