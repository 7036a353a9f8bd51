"""Reads how a checkpoint is quantized: `quantization_config` of its config.json.

modelopt also writes a file of its own, which `modelopt/declaration.py` reads.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from specdecode_engine.model.checkpoint.config_file import CheckpointError, ConfigFile
from specdecode_engine.model.checkpoint.quantized.awq import BITS as AWQ_BITS
from specdecode_engine.model.checkpoint.quantized.awq import AwqFormat
from specdecode_engine.model.checkpoint.quantized.compressed_tensors import (
    FIXED_GROUPS,
    FORMATS,
    PACKED,
    REGEX,
    CompressedTensorsFormat,
    WeightScheme,
)
from specdecode_engine.model.checkpoint.quantized.fp8 import Fp8Format
from specdecode_engine.model.checkpoint.quantized.gptq import GptqFormat, GptqLayout
from specdecode_engine.model.checkpoint.quantized.modelopt.declaration import (
    METHOD_NAMES,
    has_modelopt_file,
    is_modelopt,
    read_modelopt,
    refuse_modelopt_file,
)
from specdecode_engine.model.checkpoint.quantized.mxfp4 import Mxfp4Format
from specdecode_engine.model.checkpoint.quantized.weight import KV_CACHE, Blocks, QuantizedFormat

KEYS = ("quantization_config", "compression_config")  # the second is of older compressed-tensors
UNQUANTIZED = "use such a checkpoint, or one with unquantized weights"
GPTQ_BITS = (2, 3, 4, 8)
UNQUANTIZED_BITS = 16
AUTO_AWQ = ("auto_round:auto_awq", "auto_round:awq")
AUTO_GPTQ = "auto_round:auto_gptq"
ZERO_OFFSETS = {AUTO_GPTQ: 1, "auto_round:gptq": 1, "auto_round": 0, "auto_round:gptqmodel": 0}
"""What is added to stored zero points, by AutoRound's `packing_format`."""
END = r"\Z"
DENSE = "dense"
FIRST_WITH_STREAMS = (0, 18)  # of compressed-tensors


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint's weights are stored.

    `unused` names what config.json declares for other values than weights, which are computed in
    the types that the engine is started with.
    """

    method: str  # quant_method
    description: str  # the method with its layout
    format: QuantizedFormat
    unused: tuple[str, ...] = ()


def read_quantization(file: ConfigFile) -> Quantization | None:
    """Return the quantization of a checkpoint; None if its weights are plain.

    Raises:
        ConfigError: the method, or a detail of it, is not supported; the message names it.
    """
    text = file.section("text_config")
    sections = [part.section(key) for part in (file, text) if part is not None for key in KEYS]
    section = next((one for one in sections if one is not None and one.keys), None)
    folder = file.file.parent
    if section is None or is_modelopt(section):
        return _modelopt(section, folder)
    method = section.get("quant_method")
    reader = METHODS.get(method) if isinstance(method, str) else None
    if reader is None:
        supported = ", ".join((*METHODS, METHOD_NAMES[0]))
        raise section.error("quant_method", f"supported: {supported}; {UNQUANTIZED}")
    refuse_modelopt_file(section, folder)
    return reader(section)


def unsupported_quantization(file: ConfigFile) -> str | None:
    """Return why the quantization of a checkpoint is not supported, None if it is."""
    try:
        read_quantization(file)
    except CheckpointError as error:
        return str(error).removeprefix(f"{file.file}: ")
    return None


def _modelopt(section: ConfigFile | None, folder: Path) -> Quantization | None:
    if section is None and not has_modelopt_file(folder):
        return None
    declared = read_modelopt(section, folder)
    return Quantization("modelopt", declared.description, declared.format, declared.unused)


def _awq(section: ConfigFile) -> Quantization:
    key = "version" if section.get("version") is not None else "format"
    _need(section, key, "gemm", default="gemm")
    bits = section.integer("w_bit" if section.get("bits") is None else "bits", AWQ_BITS)
    if bits != AWQ_BITS:
        raise section.error("bits", f"supported: {AWQ_BITS}; {UNQUANTIZED}")
    group = _group_size(section, "q_group_size" if section.get("group_size") is None else None)
    return Quantization("awq", f"awq (int4, {_groups(group)})", AwqFormat(group))


def _gptq(section: ConfigFile) -> Quantization:
    version = _need(section, "checkpoint_format", "gptq", "gptq_v2", default="gptq")
    offset, is_ordered = 1 if version == "gptq" else 0, not section.switch("desc_act", False)
    layout = GptqLayout(
        section.integer("bits"),
        _group_size(section),
        offset,
        is_ordered,
        section.switch("sym", True),
    )
    _need_bits(section, layout)
    dynamic = section.section("dynamic") or ConfigFile(section.file, {})
    overrides = tuple(
        (
            _pattern(dynamic, key, rf"\A(?:{key.removeprefix('-:').removeprefix('+:')})"),
            None if key.startswith("-:") else _override(own, layout),
        )
        for key, own in _sections(dynamic)
    )
    return _gptq_quantization("gptq", GptqFormat(layout, overrides))


def _auto_round(section: ConfigFile) -> Quantization:
    """Read what AutoRound calls `auto_round`: the tensors of GPTQ or AWQ, with its own keys.

    Source: AutoRound 0.16, `inference/backend.py` (packing formats) and `inference/utils.py`.
    """
    packing = _need(section, "packing_format", *ZERO_OFFSETS, *AUTO_AWQ, default=AUTO_GPTQ)
    _need(section, "data_type", "int", default="int")
    if section.integer("act_bits", UNQUANTIZED_BITS) < UNQUANTIZED_BITS:
        raise section.error("act_bits", f"weights alone may be integers; {UNQUANTIZED}")
    offset = ZERO_OFFSETS.get(packing, 0)
    layout = GptqLayout(
        section.integer("bits"), _group_size(section), offset, True, section.switch("sym", True)
    )
    extra = section.section("extra_config") or ConfigFile(section.file, {})
    changed = [
        (_auto_round_pattern(extra, key), _override(own, layout))
        for key, own in _sections(extra)
        if own.integer("bits", layout.bits) < UNQUANTIZED_BITS
    ]
    # A name decides before an expression, which may match names with overrides of their own.
    overrides = tuple(sorted(changed, key=lambda one: not one[0].pattern.endswith(END)))
    if packing in ZERO_OFFSETS:
        _need_bits(section, layout)
        return _gptq_quantization("auto-round", GptqFormat(layout, overrides))
    if layout.bits != AWQ_BITS or any(other != layout for _, other in overrides):
        raise section.error(
            "bits", f"supported in {AUTO_AWQ[0]}: {AWQ_BITS} everywhere; {UNQUANTIZED}"
        )
    description = f"auto-round (int4, {_groups(layout.group_size)})"
    return Quantization("auto-round", description, AwqFormat(layout.group_size))


def _gptq_quantization(method: str, form: GptqFormat) -> Quantization:
    texts = [f"int{one.bits}, {_groups(one.group_size)}" for one in form.layouts]
    return Quantization(method, f"{method} ({'; '.join(dict.fromkeys(texts))})", form)


def _sections(section: ConfigFile) -> list[tuple[str, ConfigFile]]:
    """Return the objects in an object, by name."""
    found = [(str(key), section.section(key)) for key in section.keys]
    return [(key, own) for key, own in found if own is not None]


def _override(own: ConfigFile, layout: GptqLayout) -> GptqLayout:
    """Return the layout of some modules, from what differs there."""
    bits = own.integer("bits", layout.bits)
    group_size = layout.group_size if own.get("group_size") is None else _group_size(own)
    is_ordered = not own.switch("desc_act", not layout.is_ordered)
    changed = GptqLayout(
        bits, group_size, layout.zero_offset, is_ordered, own.switch("sym", layout.is_symmetric)
    )
    _need_bits(own, changed)
    return changed


def _need_bits(section: ConfigFile, layout: GptqLayout) -> None:
    if layout.bits not in GPTQ_BITS:
        supported = ", ".join(map(str, GPTQ_BITS))
        raise section.error("bits", f"supported: {supported}; {UNQUANTIZED}")


def _auto_round_pattern(extra: ConfigFile, key: str) -> re.Pattern[str]:
    is_name = re.fullmatch(r"[\w.-]+", key) is not None
    return _pattern(extra, key, rf"\A{re.escape(key)}{END}" if is_name else key)


def _pattern(section: ConfigFile, key: str, expression: str) -> re.Pattern[str]:
    try:
        return re.compile(expression)
    except re.error as error:
        raise section.error(key, f"the key is not a regular expression ({error})") from error


def _fp8(section: ConfigFile) -> Quantization:
    size = section.get("weight_block_size")
    unused = ("activations (activation_scheme)",)
    if size is None:
        description = "fp8 (float8, one scale per tensor)"
        return Quantization("fp8", description, Fp8Format(None), unused)
    blocks = Blocks(*_block_size(section, "weight_block_size"))
    description = f"fp8 (float8, blocks of {blocks.rows} x {blocks.columns})"
    return Quantization("fp8", description, Fp8Format(blocks), unused)


def _mxfp4(section: ConfigFile) -> Quantization:
    return Quantization("mxfp4", "mxfp4 (float4, groups of 32)", Mxfp4Format())


def _compressed_tensors(section: ConfigFile) -> Quantization | None:
    for key in ("sparsity_config", "transform_config"):
        part = section.section(key)
        if part is not None and part.keys and part.get("format") != DENSE:
            raise section.error(key, f"it is not supported; {UNQUANTIZED}")
    groups = section.section("config_groups")
    names = [] if groups is None else [*groups.keys]
    parts = [groups.section(name) for name in names if groups is not None]
    quantized = [one for one in parts if one is not None and one.get("weights") is not None]
    if not quantized:
        return None
    schemes = tuple(_scheme(section, part) for part in quantized)
    unused = tuple(
        f"{what} ({key})"
        for what, key, where in (
            ("activations", "input_activations", quantized),
            ("outputs", "output_activations", quantized),
            (KV_CACHE, "kv_cache_scheme", [section]),
        )
        if any(one.get(key) is not None for one in where)
    )
    layouts = ", ".join(dict.fromkeys(_scheme_text(one) for one in schemes))
    method = "compressed-tensors"
    form = CompressedTensorsFormat(schemes, is_stream=_packs_streams(section))
    return Quantization(method, f"{method} ({layouts})", form, unused)


def _packs_streams(section: ConfigFile) -> bool:
    """Whether the version that wrote a checkpoint packs a row as one stream of bits."""
    version = section.get("version")
    found = re.match(r"(\d+)\.(\d+)", version) if isinstance(version, str) else None
    return found is None or (int(found[1]), int(found[2])) >= FIRST_WITH_STREAMS


def _scheme(section: ConfigFile, group: ConfigFile) -> WeightScheme:
    weights = group.section("weights")
    assert weights is not None
    own = group if group.get("format") is not None else section
    stored = _need(own, "format", *FORMATS)
    bits = weights.integer("num_bits", 8)
    if stored == PACKED and bits > 8:
        raise weights.error("num_bits", f"supported: 1 to 8; {UNQUANTIZED}")
    targets = group.get("targets")
    if not isinstance(targets, list) or not all(isinstance(one, str) for one in targets):
        raise group.error("targets", "it must be a list of names")
    for target in targets:
        try:
            re.compile(target.removeprefix(REGEX) if target.startswith(REGEX) else "")
        except re.error as error:
            raise group.error(
                "targets", f"{target} is not a regular expression ({error})"
            ) from error
    is_float = weights.get("type") == "float"
    return WeightScheme(stored, is_float, bits, _scheme_blocks(weights, stored), tuple(targets))


def _scheme_blocks(weights: ConfigFile, stored: str) -> tuple[int | None, int | None]:
    """Return the rows and columns that share a scale; None: all."""
    if stored in FIXED_GROUPS:
        return 1, FIXED_GROUPS[stored]
    strategy = weights.get("strategy")
    if strategy is None:
        size = weights.get("group_size")
        strategy = "tensor" if size is None else "channel" if size == -1 else "group"
    if strategy == "tensor":
        return None, None
    if strategy == "channel":
        return 1, None
    if strategy == "group":
        return 1, weights.integer("group_size")
    if strategy == "block":
        return _block_size(weights, "block_structure")
    raise weights.error("strategy", f"supported: tensor, channel, group, block; {UNQUANTIZED}")


def _scheme_text(scheme: WeightScheme) -> str:
    rows, columns = scheme.blocks
    if columns is None:
        scales = "one scale per tensor" if rows is None else "a scale per channel"
    else:
        scales = _groups(columns) if rows == 1 else f"blocks of {rows} x {columns}"
    return f"{scheme.format} of {scheme.bits} bits, {scales}"


def _need(section: ConfigFile, key: str, *supported: str, default: str | None = None) -> str:
    value = section.get(key)
    if value is None and default is not None:
        return default
    text = value.lower() if isinstance(value, str) else ""
    if text not in supported:
        raise section.error(key, f"supported: {', '.join(supported)}; {UNQUANTIZED}")
    return text


def _group_size(section: ConfigFile, key: str | None = None) -> int | None:
    """Return the inputs in a group; None, which is -1 in config.json: all."""
    key = key or "group_size"
    return None if section.get(key) == -1 else section.integer(key)


def _block_size(section: ConfigFile, key: str) -> tuple[int, int]:
    value = section.get(key)
    if not isinstance(value, list) or len(value) != 2:
        raise section.error(key, "it must be two positive integers")
    rows, columns = value
    if not (isinstance(rows, int) and isinstance(columns, int) and min(rows, columns) > 0):
        raise section.error(key, "it must be two positive integers")
    return rows, columns


def _groups(size: int | None) -> str:
    return "a scale per channel" if size is None else f"groups of {size}"


METHODS: Mapping[str, Callable[[ConfigFile], Quantization | None]] = {
    "compressed-tensors": _compressed_tensors,
    "awq": _awq,
    "gptq": _gptq,
    "auto-round": _auto_round,
    "intel/auto-round": _auto_round,
    "fp8": _fp8,
    "mxfp4": _mxfp4,
}
