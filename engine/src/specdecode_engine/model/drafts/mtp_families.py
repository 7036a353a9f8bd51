"""Which decoder layer MTP modules have, and which hidden states they read, by architecture."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from specdecode_engine.model.checkpoint.config_file import CheckpointError, ConfigFile
from specdecode_engine.model.kv.layer_map import FULL, SLIDING
from specdecode_engine.model.layers.latent_config import RANK, LatentConfig
from specdecode_engine.model.layers.rope import RopeConfig, parse_rope
from specdecode_engine.model.layers.rope_keys import FRACTION, refuse_other
from specdecode_engine.model.layers.sparse_mlp import ExpertTensors, SparseMlpConfig
from specdecode_engine.model.target.config import DecoderConfig, LayerNames, parse_decoder
from specdecode_engine.model.target.families import FAMILIES, Family

DEEPSEEK_V3 = Family(
    experts=ExpertTensors.SHARED,
    defaults={"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5},
)
GLM4_MOE_LITE = Family(
    experts=ExpertTensors.SHARED,
    defaults={"num_experts_per_tok": 4, "routed_scaling_factor": 1.8, "rms_norm_eps": 1e-5},
)
GLM4_MOE = Family(experts=ExpertTensors.SHARED, rope={FRACTION: 0.5})
QWEN3_NEXT_FULL = Family(
    qk_norm=True,
    head_dim=256,
    experts=ExpertTensors.GATED_SHARED,
    rope={FRACTION: 0.25},
)
"""A layer of Qwen3-Next with full attention, the only kind that its modules have."""
QWEN3_5 = ("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM")
QWEN3_5_WRAPPED = ("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration")
STEP_FAMILY = Family(qk_norm=True, text_section="text_config", may_be_flat=True)
MIMO_V2_NAMES = LayerNames(mlp_norm="pre_mlp_layernorm", sinks="attention_sink_bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleLayer:
    """The decoder layer that all modules of a checkpoint have."""

    decoder: DecoderConfig
    rope: RopeConfig
    window: int | None = None  # positions that a row sees, its own included; None: all
    sparse_mlp: SparseMlpConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleInputs:
    """Which hidden states modules read."""

    is_chained: bool = True  # from the second module on, those of the module before
    is_target_normed: bool = True  # the target's, after its final norm
    is_output_normed: bool = True  # a module's own, after its output norm


ReadLayer = Callable[[ConfigFile, Family, int], ModuleLayer]
"""Reads the layer of so many modules from the keys of the text model."""


@dataclass(frozen=True, slots=True)
class ModuleFamily:
    """The modules of one architecture."""

    layer: Family
    read: ReadLayer
    inputs: ModuleInputs = field(default_factory=ModuleInputs)


def _read_plain(config: ConfigFile, family: Family, modules: int) -> ModuleLayer:
    """Read a layer without a window, of which a part of each head may turn."""
    config.refuse("use_sliding_window", False, "modules with a sliding window are not supported")
    config.refuse(
        RANK,
        None,
        "modules with multi-head latent attention are supported of DeepseekV3ForCausalLM and "
        "Glm4MoeLiteForCausalLM",
    )
    decoder, rope = _with_rope(config, parse_decoder(config, family), family)
    return ModuleLayer(decoder=decoder, rope=rope, sparse_mlp=_read_experts(config, family))


def _read_latent(config: ConfigFile, family: Family, modules: int) -> ModuleLayer:
    """Read a layer with multi-head latent attention."""
    latent = LatentConfig.read(config)
    own = {RANK: None, "head_dim": latent.sizes.qk_rope_head_dim}
    layer = _read_plain(ConfigFile(config.file, {**config.keys, **own}, config.prefix), family, 1)
    scale = latent.scale(layer.rope)
    return replace(layer, decoder=replace(layer.decoder, latent=latent, attention_scale=scale))


def _read_glm(config: ConfigFile, family: Family, modules: int) -> ModuleLayer:
    layer = _read_plain(config, family, modules)
    qk_norm = config.switch("use_qk_norm", False)
    return replace(layer, decoder=replace(layer.decoder, output_bias=False, qk_norm=qk_norm))


def _read_qwen3_next(config: ConfigFile, family: Family, modules: int) -> ModuleLayer:
    """Read a layer of a dense model or of a mixture, which has no width of dense MLPs (Qwen3.5)."""
    width = {"intermediate_size": config.get("moe_intermediate_size")}
    keys = ConfigFile(config.file, {**width, **config.keys}, config.prefix)
    layer = _read_plain(keys, family, modules)
    decoder = replace(layer.decoder, is_norm_weight_less_one=True, has_output_gate=True)
    return replace(layer, decoder=decoder)


def _read_step(config: ConfigFile, family: Family, modules: int) -> ModuleLayer:
    """Read a dense layer of Step-3.5; lists have an entry for each layer, then for each module."""
    own = partial(_entry_of_modules, config, modules)
    if own("swiglu_limits_shared", 0.0):
        raise config.error("swiglu_limits_shared", "limits in a module are not supported")
    kind = own("layer_types", FULL)
    keys = {
        **config.keys,
        "num_key_value_heads": config.get("num_attention_groups"),
        "rope_theta": own("rope_theta", None),
        "partial_rotary_factor": own("partial_rotary_factors", None),
    }
    if kind == SLIDING:
        section = config.section("attention_other_setting")
        other = {} if section is None else section.keys
        names = {"num_attention_groups": "num_key_value_heads"}
        keys |= {names.get(key, key): value for key, value in other.items()}
    scaled = config.get("yarn_only_types")
    if isinstance(scaled, list) and kind not in scaled:
        keys |= {"rope_scaling": None, "rope_parameters": None}
    own_keys = ConfigFile(config.file, keys, config.prefix)
    own_keys.refuse("attention_bias", False, "biases of attention in a module are not supported")
    decoder, rope = _with_rope(own_keys, parse_decoder(own_keys, family), family)
    has_gate = config.switch("use_head_wise_attn_gate", True)
    return ModuleLayer(
        decoder=replace(decoder, is_norm_weight_less_one=True, has_head_gate=has_gate),
        rope=rope,
        window=config.integer("sliding_window") if kind == SLIDING else None,
    )


def _entry_of_modules(config: ConfigFile, modules: int, key: str, default: object) -> object:
    """Return the entry that a list has for every module, or the one value for all layers."""
    value = config.get(key)
    if not isinstance(value, list):
        return default if value is None else value
    first = config.integer("num_hidden_layers")
    entries = value[first : first + modules]
    if len(entries) < modules or any(entry != entries[0] for entry in entries):
        raise config.error(
            key, f"it must have {modules} equal entries for the modules, after those of the layers"
        )
    return entries[0]


def _read_mimo_v2(config: ConfigFile, family: Family, modules: int) -> ModuleLayer:
    """Read a dense layer with the window, heads and angles of the target's sliding layers."""
    if config.get("attention_projection_layout") == "fused_qkv":
        raise config.error(
            "attention_projection_layout", "modules with q, k and v in one map are not supported"
        )
    own = {
        "num_attention_heads": "swa_num_attention_heads",
        "num_key_value_heads": "swa_num_key_value_heads",
        "head_dim": "swa_head_dim",
        "rope_theta": "swa_rope_theta",
        "rms_norm_eps": "layernorm_epsilon",
    }
    keys = {**config.keys, "rope_parameters": None, "rope_scaling": None}
    keys |= {key: config.get(name) for key, name in own.items() if config.get(name) is not None}
    own_keys = ConfigFile(config.file, keys, config.prefix)
    decoder, rope = _with_rope(own_keys, parse_decoder(own_keys, family), family)
    v_head_dim = config.integer("swa_v_head_dim", decoder.head_dim)
    scale = config.get("attention_value_scale")
    return ModuleLayer(
        decoder=replace(
            decoder,
            own_v_head_dim=None if v_head_dim == decoder.head_dim else v_head_dim,
            value_scale=None if scale is None else config.real("attention_value_scale"),
            sinks=config.switch("add_swa_attention_sink_bias", False),
            output_bias=False,
            names=MIMO_V2_NAMES,
        ),
        rope=rope,
        # So many positions before the row's own.
        window=config.integer("sliding_window_size") + 1,
    )


def _with_rope(
    config: ConfigFile, decoder: DecoderConfig, family: Family
) -> tuple[DecoderConfig, RopeConfig]:
    default = ConfigFile(config.file, family.rope).real(FRACTION, 1.0)
    rest, factor = _without_partial_factor(config, default)
    rotary_dim = int(decoder.head_dim * factor)
    if rotary_dim < 2 or rotary_dim % 2 or factor > 1:
        raise CheckpointError(
            f"{config.file}: partial_rotary_factor is {factor}; of head_dim {decoder.head_dim} it "
            "must leave an even number of entries, at least 2"
        )
    if rotary_dim < decoder.head_dim:
        decoder = replace(decoder, rotary_dim=rotary_dim)
    own_rope = {key: value for key, value in family.rope.items() if key != FRACTION}
    return decoder, parse_rope(rest, rotary_dim, own_rope)


def _without_partial_factor(config: ConfigFile, default: float) -> tuple[ConfigFile, float]:
    """Take the part of each head that turns out of either of the places where it is stated."""
    keys, factor = dict(config.keys), config.real(FRACTION, default)
    keys.pop(FRACTION, None)
    section = config.section("rope_parameters")
    if section is not None:
        factor = section.real(FRACTION, factor)
        refuse_other(config, FRACTION, factor)
        rest = {key: value for key, value in section.keys.items() if key != FRACTION}
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


def _refuse_inkling(config: ConfigFile, family: Family, modules: int) -> ModuleLayer:
    raise config.error(
        "architectures",
        "the blocks of its modules have short convolutions and relative positions, which are not "
        "supported; use another algorithm",
    )


SERVED_FAMILIES = (
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "MiMoForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
)
STEP = ModuleFamily(
    STEP_FAMILY, _read_step, ModuleInputs(is_target_normed=False, is_output_normed=False)
)
MIMO_V2 = ModuleFamily(Family(), _read_mimo_v2, ModuleInputs(is_chained=False))
MODULE_FAMILIES: Mapping[str, ModuleFamily] = {
    **{name: ModuleFamily(FAMILIES[name], _read_plain) for name in SERVED_FAMILIES},
    "Glm4MoeForCausalLM": ModuleFamily(GLM4_MOE, _read_glm),
    "Glm4MoeLiteForCausalLM": ModuleFamily(GLM4_MOE_LITE, _read_latent),
    "DeepseekV3ForCausalLM": ModuleFamily(DEEPSEEK_V3, _read_latent),
    "Qwen3NextForCausalLM": ModuleFamily(QWEN3_NEXT_FULL, _read_qwen3_next),
    **{name: ModuleFamily(QWEN3_NEXT_FULL, _read_qwen3_next) for name in QWEN3_5},
    **{
        name: ModuleFamily(replace(QWEN3_NEXT_FULL, text_section="text_config"), _read_qwen3_next)
        for name in QWEN3_5_WRAPPED
    },
    "Step3p5ForCausalLM": STEP,
    "Step3p7ForConditionalGeneration": STEP,
    "MiMoV2FlashForCausalLM": MIMO_V2,
    "MiMoV2ForCausalLM": MIMO_V2,
    "InklingForConditionalGeneration": ModuleFamily(
        Family(text_section="text_config", may_be_flat=True), _refuse_inkling
    ),
}
"""By the name under `architectures`: the models whose decoder layer a module may have."""
