"""Reads what nvidia-modelopt declares: `quantization_config` of config.json, hf_quant_config.json.

config.json has `quant_algo`, `ignore` and `kv_cache_scheme` in one object. hf_quant_config.json has
`quant_algo`, `exclude_modules` and `kv_cache_quant_algo` in an object `quantization`, and group
sizes that config.json lacks; older checkpoints have this file alone. Where both exist, they agree
in these three; their other keys always differ.

Source: NVIDIA/Model-Optimizer 0.47, `torch/export/convert_hf_config.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from specdecode_engine.model.checkpoint.config_file import ConfigError, ConfigFile
from specdecode_engine.model.checkpoint.quantized.modelopt.format import (
    ALGORITHMS,
    AWQ,
    FP8_BLOCKS,
    GROUPS,
    ModeloptFormat,
    ModeloptScheme,
)
from specdecode_engine.model.checkpoint.quantized.weight import KV_CACHE

FILE = "hf_quant_config.json"
METHOD_NAMES = (
    *("modelopt", "modelopt_fp8", "modelopt_fp4"),
    *("modelopt_mxfp8", "modelopt_mixed"),
)
"""Values of `quant_method` in vLLM and SGLang; the algorithm decides, whatever the suffix."""
MIXED = "MIXED_PRECISION"
KV_ALGORITHMS = ("FP8", "INT8", "NVFP4", "NVFP4_AFFINE")
AWQ_GROUP = 128  # where no file has another one
LAYER_KEYS = ("quant_algo", "group_size", "has_zero_point", "pre_quant_scale")
NESTED = "quantization"
NESTED_KEYS = (*LAYER_KEYS, "kv_cache_quant_algo", "exclude_modules", "quantized_layers")
FLAT_KEYS = (
    *LAYER_KEYS,
    *("quant_method", "producer", "ignore", "kv_cache_scheme", "config_groups", "quantized_layers"),
)
ONE_SOURCE = "take both files from the same checkpoint"


@dataclass(frozen=True, slots=True)
class ModeloptDeclaration:
    """What one file declares, or both do; algorithms are in capitals."""

    file: ConfigFile  # the object that has the keys
    algorithm: str
    scheme: ModeloptScheme | None  # None: that of each layer
    layers: Mapping[str, ModeloptScheme]
    excluded: tuple[str, ...]
    kv_algorithm: str | None

    @property
    def format(self) -> ModeloptFormat:
        """The layout of the weights."""
        layers = {name: _with_group(one) for name, one in self.layers.items()}
        scheme = None if self.scheme is None else _with_group(self.scheme)
        return ModeloptFormat(scheme, layers, self.excluded)

    @property
    def description(self) -> str:
        """The algorithms with their groups."""
        return "modelopt ({})".format("; ".join(sorted(map(_scheme_text, self.format.schemes))))

    @property
    def unused(self) -> tuple[str, ...]:
        """What is declared for other values than weights."""
        algorithms = {one.algorithm for one in self.format.schemes}
        found = [f"activations (quant_algo {one})" for one in sorted(algorithms & ACTIVATIONS)]
        if self.kv_algorithm is not None:
            found.append(f"{KV_CACHE} ({self.kv_algorithm})")
        return tuple(found)


ACTIVATIONS = frozenset({"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "MXFP8", "NVFP4", "MXFP4", "W4A8_AWQ"})
"""The algorithms that quantize activations too."""


def has_modelopt_file(folder: Path) -> bool:
    """Whether a checkpoint has hf_quant_config.json."""
    return (folder / FILE).is_file()


def is_modelopt(section: ConfigFile) -> bool:
    """Whether `quantization_config` is modelopt's, also without a `quant_method` (older files)."""
    method = section.get("quant_method")
    if method is None:
        producer = section.get("producer")
        return isinstance(producer, Mapping) and producer.get("name") == "modelopt"
    return isinstance(method, str) and method.lower() in METHOD_NAMES


def read_modelopt(section: ConfigFile | None, folder: Path) -> ModeloptDeclaration:
    """Read config.json's section, hf_quant_config.json, or both.

    Raises:
        ConfigError: a key or algorithm is unknown, or the files contradict each other.
    """
    declared = None if section is None else _read(section)
    if not has_modelopt_file(folder):
        assert declared is not None
        return declared
    other = _read(ConfigFile.open(folder / FILE))
    if declared is None:
        return other
    _compare(declared, other)
    if declared.scheme is not None and declared.scheme.group_size is None:
        return replace(declared, scheme=other.scheme)
    return declared


def refuse_modelopt_file(section: ConfigFile, folder: Path) -> None:
    """Raise if hf_quant_config.json exists next to another method of config.json."""
    if has_modelopt_file(folder):
        other = _read(ConfigFile.open(folder / FILE))
        method = section.get("quant_method")
        raise other.file.error(
            "quant_algo", f"quant_method of config.json is {method!r}; {ONE_SOURCE}"
        )


def _read(section: ConfigFile) -> ModeloptDeclaration:
    nested = section.section(NESTED)
    if nested is None:
        keys, excluded_key, kv_key = section, "ignore", "kv_cache_scheme"
        _refuse_unknown(section, FLAT_KEYS)
    else:
        keys, excluded_key, kv_key = nested, "exclude_modules", "kv_cache_quant_algo"
        _refuse_unknown(section, ("quant_method", "producer", NESTED))
        _refuse_unknown(nested, NESTED_KEYS)
    algorithm = _algorithm(keys, (*ALGORITHMS, MIXED))
    is_mixed = algorithm == MIXED
    return ModeloptDeclaration(
        keys,
        algorithm,
        None if is_mixed else _scheme(keys, algorithm),
        _layers(keys) if is_mixed else {},
        _names(keys, excluded_key),
        _kv_algorithm(keys, kv_key),
    )


def _refuse_unknown(section: ConfigFile, known: tuple[str, ...]) -> None:
    for key, value in section.keys.items():
        if value is not None and key not in known:
            raise section.error(key, f"the key is not known; known are {', '.join(known)}")


def _algorithm(section: ConfigFile, supported: tuple[str, ...]) -> str:
    value = section.get("quant_algo")
    text = value.upper() if isinstance(value, str) else ""
    if text not in supported:
        remedy = "use such a checkpoint, or one with unquantized weights"
        raise section.error("quant_algo", f"supported: {', '.join(supported)}; {remedy}")
    return text


def _scheme(section: ConfigFile, algorithm: str) -> ModeloptScheme:
    """Return a layout; its group is None where the section has none."""
    section.refuse("has_zero_point", False, "zero points are not supported")
    size = None if section.get("group_size") is None else section.integer("group_size")
    fixed = GROUPS.get(algorithm)
    if fixed is not None and size not in (None, fixed):
        raise section.error("group_size", f"{algorithm} has groups of {fixed}")
    return ModeloptScheme(algorithm, size if algorithm in AWQ else fixed)


def _with_group(scheme: ModeloptScheme) -> ModeloptScheme:
    is_open = scheme.algorithm in AWQ and scheme.group_size is None
    return replace(scheme, group_size=AWQ_GROUP) if is_open else scheme


def _names(section: ConfigFile, key: str) -> tuple[str, ...]:
    value = section.get(key)
    listed = [] if value is None else value
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise section.error(key, "it must be a list of names or shell patterns of modules")
    return tuple(listed)


def _kv_algorithm(section: ConfigFile, key: str) -> str | None:
    """Return how the KV cache is quantized; config.json has an object for FP8."""
    value = section.get(key)
    if value is None:
        return None
    if isinstance(value, Mapping) and (value.get("type"), value.get("num_bits")) == ("float", 8):
        return KV_ALGORITHMS[0]
    if not isinstance(value, str) or value.upper() not in KV_ALGORITHMS:
        raise section.error(key, f"supported: {', '.join(KV_ALGORITHMS)}, float of 8 bits")
    return value.upper()


def _layers(section: ConfigFile) -> dict[str, ModeloptScheme]:
    layers = section.section("quantized_layers")
    if layers is None or not layers.keys:
        raise section.error("quantized_layers", f"{MIXED} needs the algorithm of each layer")
    found: dict[str, ModeloptScheme] = {}
    for name in layers.keys:
        layer = layers.section(name)
        if layer is None:
            raise layers.error(name, "it must be an object with quant_algo")
        _refuse_unknown(layer, LAYER_KEYS)
        found[name] = _scheme(layer, _algorithm(layer, ALGORITHMS))
    return found


def _compare(declared: ModeloptDeclaration, other: ModeloptDeclaration) -> None:
    """Raise where hf_quant_config.json differs from config.json in what both declare."""
    file = other.file
    if declared.algorithm != other.algorithm:
        raise file.error("quant_algo", f"config.json has {declared.algorithm!r}; {ONE_SOURCE}")
    for name in sorted(declared.layers.keys() | other.layers.keys()):
        theirs, own = (one.layers.get(name) for one in (other, declared))
        texts = ["missing" if one is None else repr(one.algorithm) for one in (theirs, own)]
        if texts[0] != texts[1]:
            key, fault = f"{file.prefix}quantized_layers.{name}", "is {}, but {} in config.json"
            raise ConfigError(file.file, key, fault.format(*texts), ONE_SOURCE)
    only = sorted({*declared.excluded} ^ {*other.excluded})
    if only:
        key = f"{file.prefix}exclude_modules"
        has, lacks = (file.file.name, declared.file.file.name)
        if only[0] in declared.excluded:
            has, lacks = lacks, has
        fault = f"differs from {declared.file.prefix}ignore of config.json: {has} has {only[0]!r}"
        raise ConfigError(file.file, key, f"{fault}, {lacks} has not", ONE_SOURCE)
    if declared.kv_algorithm != other.kv_algorithm:
        raise ConfigError(
            file.file,
            f"{file.prefix}kv_cache_quant_algo",
            f"is {other.kv_algorithm!r}, but {declared.kv_algorithm!r} in config.json",
            ONE_SOURCE,
        )


def _scheme_text(scheme: ModeloptScheme) -> str:
    if scheme.algorithm == FP8_BLOCKS:
        return f"{scheme.algorithm}, blocks of {scheme.group_size} x {scheme.group_size}"
    groups = "" if scheme.group_size is None else f", groups of {scheme.group_size}"
    return f"{scheme.algorithm}{groups}"
