"""The config.json of a checkpoint with multi-token prediction (MTP) modules, checked against a
target.

A module has one decoder layer of the model that it was trained with. Its config.json is that of
the target's own checkpoint, or of an export that contains the module alone ("NextN" repositories).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from specdecode_engine.model.checkpoint import has_tensors
from specdecode_engine.model.config import AuxHiddenStates, DecoderConfig, parse_decoder
from specdecode_engine.model.config_file import CheckpointError, ConfigFile
from specdecode_engine.model.draft_config import HeadConfig
from specdecode_engine.model.families import FAMILIES, Family
from specdecode_engine.model.language_model import LanguageModelConfig
from specdecode_engine.model.mtp_layout import DEEPSEEK, MIMO, QWEN3_NEXT, MtpLayout, MtpModules
from specdecode_engine.model.pickle_store import has_pickles
from specdecode_engine.model.quantized.store import open_checkpoint
from specdecode_engine.model.rope import RopeConfig, parse_rope
from specdecode_engine.model.sparse_mlp import ExpertTensors, SparseMlpConfig

COUNT_KEYS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
EXPORT_SUFFIXES = ("NextN", "MTP")
"""What exports of the module alone add to the name of the architecture."""

GLM4_MOE = Family(experts=ExpertTensors.SHARED, defaults={"partial_rotary_factor": 0.5})
QWEN3_NEXT_FULL = Family(
    qk_norm=True,
    head_dim=256,
    experts=ExpertTensors.GATED_SHARED,
    defaults={"partial_rotary_factor": 0.25},
)
"""A layer of Qwen3-Next with full attention, the only kind that its modules have."""

SERVED_FAMILIES = (
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "MiMoForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
)
LAYER_FAMILIES: Mapping[str, Family] = {
    **{name: FAMILIES[name] for name in SERVED_FAMILIES},
    "Glm4MoeForCausalLM": GLM4_MOE,
    "DeepseekV3ForCausalLM": Family(experts=ExpertTensors.SHARED),
    "Qwen3NextForCausalLM": QWEN3_NEXT_FULL,
}
"""By the name under `architectures`: the models whose decoder layer a module may have."""

_LAYOUTS = {"MiMoForCausalLM": MIMO, "Qwen3NextForCausalLM": QWEN3_NEXT}


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpConfig(HeadConfig):
    """Modules of one decoder layer each."""

    layout: MtpLayout
    numbers: tuple[int, ...]  # of the modules, in the names of their tensors

    @property
    def facts(self) -> dict[str, object]:
        return {"mtp_layout": self.layout.name, "mtp_modules": len(self.numbers)}

    @classmethod
    def load(cls, folder: Path, target: LanguageModelConfig) -> "MtpConfig":
        """Read `folder`/config.json and the names of the tensors there, if there are any."""
        file = ConfigFile.open(folder / "config.json")
        _refuse_latent_attention(file)
        name = architecture_of(file)
        if name not in LAYER_FAMILIES:
            known = ", ".join(LAYER_FAMILIES)
            raise file.error("architectures", f"MTP modules are supported of {known}")
        family = LAYER_FAMILIES[name]
        config = family.keys_of(file)
        for key, wanted in (
            ("hidden_size", target.decoder.hidden_size),
            ("vocab_size", target.vocab_size),
        ):
            if config.integer(key) != wanted:
                remedy = f"the target's is {wanted}; use modules of this target"
                raise config.mismatch(key, remedy)
        modules = _find_modules(folder, config, _LAYOUTS.get(name, DEEPSEEK))
        decoder, rope = _read_layer(config, name, family)
        return cls(
            decoder=decoder,
            rope=rope,
            num_hidden_layers=1,
            vocab_size=target.vocab_size,
            draft_vocab_size=target.vocab_size,
            aux_spec=AuxHiddenStates(final=True),
            layout=modules.layout,
            numbers=modules.numbers,
            sparse_mlp=_read_experts(config, family),
        )


def architecture_of(file: ConfigFile) -> str:
    """Return the architecture of a config.json, without what exports of a module add to it."""
    name = file.architecture
    for suffix in EXPORT_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def is_export(file: ConfigFile) -> bool:
    """Whether a config.json is of modules alone, as its architecture declares."""
    return file.architecture.endswith(EXPORT_SUFFIXES)


def has_modules(folder: Path) -> bool:
    """Whether a checkpoint has MTP modules; without tensors, config.json decides."""
    if has_tensors(folder) or has_pickles(folder):
        return MtpModules.find(open_checkpoint(folder).tensors) is not None
    return _count(ConfigFile.open(folder / "config.json")) > 0


def _refuse_latent_attention(file: ConfigFile) -> None:
    if file.get("kv_lora_rank") is not None:
        raise file.error(
            "kv_lora_rank",
            "the module has multi-head latent attention (q_a_proj, kv_a_proj_with_mqa, kv_b_proj), "
            "which is not supported; use another algorithm",
        )


def _count(config: ConfigFile) -> int:
    """Return how many modules config.json names; 0 also where it names none."""
    stated = [config.integer(key, least=0) for key in COUNT_KEYS if config.get(key) is not None]
    return stated[0] if stated else 0


def _find_modules(folder: Path, config: ConfigFile, layout: MtpLayout) -> MtpModules:
    if not has_tensors(folder) and not has_pickles(folder):
        first = config.integer("num_hidden_layers") if layout is DEEPSEEK else 0
        return MtpModules(layout, tuple(range(first, first + max(1, _count(config)))))
    found = MtpModules.find(open_checkpoint(folder).tensors)
    if found is None:
        raise CheckpointError(
            f"{folder}: there are no tensors of an MTP module (model.layers.N.eh_proj, "
            "model.mtp_layers.0 or mtp.fc); use a checkpoint that contains one, or another "
            "algorithm"
        )
    if 0 < _count(config) < len(found.numbers):
        key = next(key for key in COUNT_KEYS if config.get(key) is not None)
        raise config.error(key, f"the checkpoint has {len(found.numbers)} modules; correct it")
    return found


def _read_layer(
    config: ConfigFile, architecture: str, family: Family
) -> tuple[DecoderConfig, RopeConfig]:
    config.refuse("use_sliding_window", False, "modules with a sliding window are not supported")
    decoder = parse_decoder(config, family)
    if architecture == "Glm4MoeForCausalLM":
        decoder = replace(decoder, output_bias=False, qk_norm=config.switch("use_qk_norm", False))
    if family is QWEN3_NEXT_FULL:
        decoder = replace(decoder, is_norm_weight_less_one=True, has_output_gate=True)
    rest, factor = _without_partial_factor(config)
    rotary_dim = int(decoder.head_dim * factor)
    if rotary_dim < 2 or rotary_dim % 2 or factor > 1:
        raise CheckpointError(
            f"{config.file}: partial_rotary_factor is {factor}; of head_dim {decoder.head_dim} it "
            "must leave an even number of entries, at least 2"
        )
    if rotary_dim < decoder.head_dim:
        decoder = replace(decoder, rotary_dim=rotary_dim)
    return decoder, parse_rope(rest, rotary_dim, family.rope)


def _without_partial_factor(config: ConfigFile) -> tuple[ConfigFile, float]:
    """Take the part of each head that turns out of either of the places where it is stated."""
    keys, factor = dict(config.keys), config.real("partial_rotary_factor", 1.0)
    keys.pop("partial_rotary_factor", None)
    section = config.section("rope_parameters")
    if section is not None:
        factor = section.real("partial_rotary_factor", factor)
        rest = {key: value for key, value in section.keys.items() if key != "partial_rotary_factor"}
        keys["rope_parameters"] = rest
    return ConfigFile(config.file, keys, config.prefix), factor


def _read_experts(config: ConfigFile, family: Family) -> SparseMlpConfig | None:
    """Read the experts of the layer; a checkpoint without any, as Qwen3.5's, has dense layers."""
    if family.experts is None:
        return None
    keys = ("n_routed_experts", "num_experts", "num_local_experts")
    if not any(config.get(key) for key in keys):
        return None
    return SparseMlpConfig.read(config, 1, family.experts)
