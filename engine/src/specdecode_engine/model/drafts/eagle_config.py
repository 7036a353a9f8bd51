"""The config.json of an EAGLE head, checked against the target it was made for.

Writers put the switches of an EAGLE-3 variant at the top level or into `eagle_config`; both are
read. Speculators numbers the boundaries between the target's layers, where others number outputs.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from specdecode_engine.model.checkpoint.config_file import ConfigFile, DraftMismatch
from specdecode_engine.model.drafts.draft_config import HeadConfig
from specdecode_engine.model.drafts.speculators import (
    KIND,
    Verifier,
    flatten_speculators,
    open_draft,
    proposed_draft_steps,
    read_boundaries,
)
from specdecode_engine.model.kv.layer_map import FULL, SLIDING
from specdecode_engine.model.layers.rope import parse_rope
from specdecode_engine.model.target.config import (
    AuxHiddenStates,
    DecoderConfig,
    parse_decoder,
    refuse_windows,
    windows_by_type,
)
from specdecode_engine.model.target.families import Family
from specdecode_engine.model.target.language_model import LanguageModelConfig

EAGLE1_ARCHITECTURES = ("LlamaForCausalLM", "LlamaForCausalLMEagle", "EagleLlamaForCausalLM")
"""The authors' heads call themselves plain Llamas; servers that convert them rename them."""

SPECULATORS_ARCHITECTURES = ("Eagle3Speculator", "Eagle3DraftModel")
EAGLE3_ARCHITECTURES = (
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    *SPECULATORS_ARCHITECTURES,
)
PARALLEL_ARCHITECTURES = ("PEagleSpeculator", "PEagleDraftModel", "PeagleLlamaForCausalLM")
MASK_TOKEN_KEYS = ("ptd_token_id", "pard_token")
"""What heads of other writers call the token that stands for one not drafted yet."""
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
USE_LAYERS = "use_aux_hidden_state"


class HeadForm(NamedTuple):
    """How a kind of head calls itself."""

    name: str  # with its article
    architectures: tuple[str, ...]
    speculators_kind: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle1Config(HeadConfig):
    """Layers after one linear map; hidden state and vocabulary are the target's."""

    bias: bool  # of the linear map; absent means true

    @classmethod
    def load(cls, folder: Path, target: LanguageModelConfig) -> "Eagle1Config":
        """Read `folder`/config.json."""
        config = _open(folder, HeadForm("an EAGLE head", EAGLE1_ARCHITECTURES))
        refuse_windows(config)
        for key, wanted in (
            ("hidden_size", target.decoder.hidden_size),
            ("vocab_size", target.vocab_size),
        ):
            _check_equal(config, key, config.integer(key), wanted)
        family = Family(always_qkv_bias=config.switch("qkv_bias", False))
        decoder = parse_decoder(config, family)
        return cls(
            decoder=decoder,
            rope=parse_rope(config, decoder.head_dim),
            num_hidden_layers=config.integer("num_hidden_layers"),
            vocab_size=target.vocab_size,
            draft_vocab_size=target.vocab_size,
            aux_spec=AuxHiddenStates(final=True),
            bias=config.switch("bias", True),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config(HeadConfig):
    """Decoder layers over aux hidden states; the first one also reads tokens."""

    form: ClassVar = HeadForm("an EAGLE-3 head", EAGLE3_ARCHITECTURES, "eagle3")

    logit_scale: float
    has_own_vocabulary: bool  # whether draft_vocab_size is stated
    tie_word_embeddings: bool
    norm_before_fc: bool  # one norm over the aux hidden states of all layers
    fc_norm: bool  # one norm for the aux hidden states of each layer
    norm_before_residual: bool  # the residual stream starts from the normed hidden state
    norm_output: bool  # the next row's hidden state is the normed output

    @classmethod
    def load(cls, folder: Path, target: LanguageModelConfig) -> Self:
        """Read `folder`/config.json; refuse variants that the head does not compute."""
        config = _open(folder, cls.form)
        _refuse_unsupported(config)
        vocab_size = config.integer("vocab_size")
        _check_equal(config, "vocab_size", vocab_size, target.vocab_size)
        hidden_size = config.get("target_hidden_size")
        if hidden_size is not None:
            _check_equal(config, "target_hidden_size", hidden_size, target.decoder.hidden_size)
        decoder = _eagle3_decoder(config)
        layers = config.integer("num_hidden_layers")
        draft_vocab_size, is_tied = _draft_vocabulary(config, vocab_size)
        return cls(
            decoder=decoder,
            rope=parse_rope(config, decoder.head_dim),
            num_hidden_layers=layers,
            vocab_size=vocab_size,
            draft_vocab_size=draft_vocab_size,
            aux_spec=_aux_spec(config, target),
            sliding_windows=_own_windows(config, layers),
            verifier=Verifier.read(config),
            proposed_draft_steps=proposed_draft_steps(config),
            logit_scale=config.real("logit_scale", 1.0),
            has_own_vocabulary=config.get("draft_vocab_size") is not None,
            tie_word_embeddings=is_tied,
            norm_before_fc=_variant(config, "norm_before_fc"),
            fc_norm=_variant(config, "fc_norm"),
            norm_before_residual=_variant(config, "norm_before_residual"),
            norm_output=_variant(config, "norm_output"),
            **cls._read_own(config),
        )

    @classmethod
    def _read_own(cls, config: ConfigFile) -> dict[str, Any]:
        """Read the fields that this kind of head has besides those of EAGLE-3."""
        if is_parallel(config):
            raise config.error(
                "architectures", "a head that drafts all tokens at once is one of PEAGLE"
            )
        return {}


def is_parallel(config: ConfigFile) -> bool:
    """Whether a head drafts all tokens in one forward (P-EAGLE)."""
    if config.architecture in PARALLEL_ARCHITECTURES or config.get(KIND) == "peagle":
        return True
    return any(config.get(key) is not None for key in MASK_TOKEN_KEYS)


def _open(folder: Path, form: HeadForm) -> ConfigFile:
    config = open_draft(folder)
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in form.architectures:
        known = " or ".join(form.architectures)
        raise config.error("architectures", f"{form.name} has {known}")
    if form.speculators_kind and (
        config.get(KIND) is not None or names[0] in SPECULATORS_ARCHITECTURES
    ):
        config = flatten_speculators(config, form.speculators_kind)
    config.refuse("quantization_config", {}, "convert the head's weights to an unquantized type")
    return config


def _eagle3_decoder(config: ConfigFile) -> DecoderConfig:
    """Read the sizes of a layer: a Llama's, or that of speculators' Qwen3 with norms of heads.

    `qkv_bias` is about queries, keys and values alone, `attention_bias` about the output too.
    """
    is_of_speculators = config.get(KIND) is not None
    has_head_norms = is_of_speculators and config.get("model_type") == "qwen3"
    decoder = parse_decoder(config, Family(qk_norm=has_head_norms))
    return replace(decoder, qkv_bias=config.switch("qkv_bias", decoder.qkv_bias))


def _own_windows(config: ConfigFile, layers: int) -> tuple[int | None, ...]:
    """Return the window of each layer of the head, which is independent of the target's.

    `sliding_window` holds for the layers that `layer_types` names, for all without it, and for none
    if `use_sliding_window` is false. Types without a window may be those of the target's layers.
    """
    width, types = config.get("sliding_window"), config.get("layer_types")
    is_on = config.switch("use_sliding_window", width is not None and width is not False)
    has_none = not is_on
    if isinstance(types, list):
        has_none = bool(types) and all(one == FULL for one in types)
    if has_none:
        return (None,) * layers
    return windows_by_type(config, [SLIDING if is_on else FULL] * layers)


def _check_equal(config: ConfigFile, key: str, value: object, wanted: int) -> None:
    if value != wanted:
        raise config.mismatch(key, f"the target's is {wanted}; use a head made for this target")


def _draft_vocabulary(config: ConfigFile, vocab_size: int) -> tuple[int, bool]:
    """Return the tokens that the head scores, and whether its embedding scores them."""
    draft_vocab_size = config.integer("draft_vocab_size", vocab_size)
    if draft_vocab_size > vocab_size:
        raise config.error("draft_vocab_size", f"vocab_size is only {vocab_size}")
    is_tied = config.switch("tie_word_embeddings", False)
    if is_tied and draft_vocab_size < vocab_size:
        raise config.error(
            "tie_word_embeddings",
            f"an embedding of {vocab_size} tokens cannot score {draft_vocab_size}; "
            "set it to false if the head has its own lm_head",
        )
    return draft_vocab_size, is_tied


def _parts(config: ConfigFile) -> tuple[ConfigFile, ...]:
    section = config.section("eagle_config")
    return (section, config) if section is not None else (config,)


def _variant(config: ConfigFile, key: str) -> bool:
    return any(part.switch(key, False) for part in _parts(config))


def _refuse_unsupported(config: ConfigFile) -> None:
    if _variant(config, "norm_before_fc") and _variant(config, "fc_norm"):
        raise config.error("fc_norm", "norm_before_fc is true too; a head has one of the two")


def _aux_spec(config: ConfigFile, target: LanguageModelConfig) -> AuxHiddenStates:
    if all(part.switch(USE_LAYERS, True) for part in _parts(config)):
        return AuxHiddenStates(layers=_layers(config, target.num_hidden_layers))
    for variant in ("norm_before_fc", "fc_norm"):
        for part in _parts(config):
            part.refuse(variant, False, f"{USE_LAYERS} is false, so there is no fc to norm for")
    if config.integer("hidden_size") != target.decoder.hidden_size:
        raise config.mismatch(
            "hidden_size",
            f"{USE_LAYERS} is false, and the target's is {target.decoder.hidden_size}",
        )
    return AuxHiddenStates(final=True)


def _layers(config: ConfigFile, count: int) -> tuple[int, ...]:
    """List the layers whose output the head reads; by default the authors' three."""
    stated = next((part for part in _parts(config) if part.ids(LAYER_IDS)), config)
    if stated.ids(LAYER_IDS) and config.get(KIND) is not None:
        chosen = read_boundaries(stated, LAYER_IDS, count)
    else:
        chosen = _by_output(stated, count)
    for part in _parts(config):
        part.refuse("num_aux_hidden_states", len(chosen), f"{LAYER_IDS} names {len(chosen)}")
    return chosen


def _by_output(stated: ConfigFile, count: int) -> tuple[int, ...]:
    """List the layers of a writer that numbers outputs, or names none."""
    ids = stated.ids(LAYER_IDS)
    chosen = _outputs(ids, count) or (1, count // 2 - 1, count - 4)
    ascending = all(low < high for low, high in pairwise(chosen))
    rule = f"ascending ids of the target's {count} layers, whose output is meant: 0..{count - 1}"
    if not ascending or chosen[0] < 0 or chosen[-1] >= count:
        fault = f"is {list(ids)}" if ids else f"is missing and the usual {list(chosen)} do not fit"
        remedy = f"use a head made for this target, or state {rule}"
        raise DraftMismatch(f"{stated.file}: {stated.prefix}{LAYER_IDS} {fault}; {remedy}")
    return chosen


def _outputs(ids: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Translate stated ids, which are output ids unless they are boundaries.

    Some writers besides speculators number the boundaries between layers: boundary i + 1 is the
    output of layer i. Two of their lists are recognised: one that reaches the boundary after the
    last layer, and their default.
    """
    if ids[-1:] == (count,) or ids == (2, count // 2, count - 3):
        return tuple(number - 1 for number in ids)
    return ids
