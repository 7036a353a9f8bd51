"""The config.json of a DFlash draft, checked against the target that it was made for.

Writers differ: z-lab keeps the keys of the method in `dflash_config`, Muse's assistants at the top
level, and speculators has the keys of the layers in `transformer_layer_config` and numbers the
boundaries between the target's layers. All three are read.

Sources: vLLM's `qwen3_dflash` and transformers' `MuseGlimmerAssistantModel` for which layers are
causal and how far their windows reach; vllm-project/speculators for its own form.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self

from specdecode_engine.model.checkpoint.config_file import (
    CheckpointError,
    ConfigFile,
    DraftMismatch,
)
from specdecode_engine.model.drafts.draft_config import HeadConfig, read_mask_token
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
from specdecode_engine.model.target.config import AuxHiddenStates, parse_decoder
from specdecode_engine.model.target.families import Family
from specdecode_engine.model.target.language_model import LanguageModelConfig

DFLASH_ARCHITECTURES: Final = (
    "DFlashDraftModel",
    "DFlashSpeculator",
    "DFlashQwen3ForCausalLM",
    "MuseGlimmerAssistantModel",
)
MUSE: Final = "MuseGlimmerAssistantModel"
SECTIONS: Final = ("dflash_config", "dspark_config")
LAYER_IDS: Final = "target_layer_ids"
BOUNDARY_IDS: Final = "aux_hidden_state_layer_ids"
DEFAULT_THETA: Final = 1_000_000.0
DEFAULT_BLOCK: Final = 16
_LAYERS: Final = Family(qk_norm=True)


class BlockForm(NamedTuple):
    """How a kind of block draft calls itself."""

    name: str
    architectures: tuple[str, ...]
    speculators_kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig(HeadConfig):
    """A draft that computes a block of tokens in one forward.

    `sliding_windows` are the most positions that a row sees, its own included, counted back from
    it; those after it in its block come on top where its layer is not causal.
    """

    block_size: int  # rows of a block: the bonus token and mask tokens after it
    first_row: int  # that drafts a token; the rows after it draft those after that token
    mask_token_id: int
    causal_layers: tuple[bool, ...]  # by layer: whether a row sees no later row of its block
    tie_word_embeddings: bool

    @property
    def max_steps(self) -> int:
        """Tokens that one block drafts."""
        return self.block_size - self.first_row

    @property
    def recurrent_width(self) -> int:
        """Values of a row besides its logits that its token or its confidence follows from."""
        return 0

    @property
    def facts(self) -> dict[str, object]:
        block = {
            "block_size": self.block_size,
            "draft_tokens": self.max_steps,
            "mask_token_id": self.mask_token_id,
            "target_layer_ids": list(self.aux_spec.layers),
            "causal": list(self.causal_layers),
            "sliding_windows": list(self.sliding_windows),
        }
        return {"block_draft": block}


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashConfig(BlockConfig):
    """Qwen3's layers over projected hidden states of the target."""

    form: ClassVar = BlockForm("DFlash", DFLASH_ARCHITECTURES, "dflash")

    @classmethod
    def load(cls, folder: Path, target: LanguageModelConfig) -> Self:
        """Read `folder`/config.json.

        Raises:
            ConfigError, DraftMismatch: a key is missing, not supported or not the target's.
        """
        config = _open(folder, cls.form)
        sinks = config.switch("add_swa_attention_sink_bias", False)
        decoder = replace(
            parse_decoder(config, _LAYERS), sinks=config.switch("attention_sink_bias", sinks)
        )
        count = config.integer("num_hidden_layers")
        _check_target(config, target)
        vocab_size, block_size = target.vocab_size, _block_size(config)
        first_row = cls._first_row(config)
        most = block_size - first_row
        return cls(
            decoder=decoder,
            rope=parse_rope(config, decoder.head_dim, {"rope_theta": DEFAULT_THETA}),
            num_hidden_layers=count,
            vocab_size=vocab_size,
            draft_vocab_size=_draft_vocabulary(config, vocab_size),
            aux_spec=AuxHiddenStates(layers=_target_layers(config, target)),
            verifier=Verifier.read(config),
            proposed_draft_steps=min(proposed_draft_steps(config) or most, most),
            block_size=block_size,
            first_row=first_row,
            mask_token_id=read_mask_token(config, "mask_token_id", vocab_size),
            sliding_windows=_windows(config, count, block_size),
            causal_layers=_causal_layers(config, count),
            tie_word_embeddings=config.switch("tie_word_embeddings", False),
            **cls._read_own(config),
        )

    @classmethod
    def _first_row(cls, config: ConfigFile) -> int:
        return 0 if config.switch("sample_from_anchor", False) else 1

    @classmethod
    def _read_own(cls, config: ConfigFile) -> dict[str, Any]:
        """Read the fields that this kind of draft has besides those of DFlash."""
        if markov_rank(config):
            raise config.error("markov_rank", "a draft with a Markov head is one of DSPARK")
        return {}


def is_dflash(config: ConfigFile) -> bool:
    """Whether config.json is that of a DFlash draft."""
    return config.architecture in DFLASH_ARCHITECTURES and not markov_rank(config)


def markov_rank(config: ConfigFile) -> object:
    """Return the rank of a draft's Markov head, wherever config.json states it; else None or 0."""
    found = (config, *map(config.section, SECTIONS))
    return next((one.get("markov_rank") for one in found if one and one.get("markov_rank")), None)


def _open(folder: Path, form: BlockForm) -> ConfigFile:
    """Return the keys of the layers and those of the method, next to each other."""
    config = open_draft(folder)
    if (folder / "mask_embedding.pt").exists():
        raise CheckpointError(
            f"{folder / 'mask_embedding.pt'}: is a pickle; store its embedding as tensor "
            "mask_embedding in model.safetensors, and remove the file"
        )
    if config.architecture not in form.architectures:
        names = " or ".join(form.architectures)
        raise config.error("architectures", f"a {form.name} draft has {names}")
    config.refuse("quantization_config", {}, "convert the draft's weights to an unquantized type")
    if config.get(KIND) is not None:
        config = flatten_speculators(config, form.speculators_kind, ("qwen3",))
    for name in SECTIONS:
        section = config.section(name)
        if section is not None:
            config = ConfigFile(config.file, {**config.keys, **section.keys})
    for key in ("is_neox_style", "rope_is_neox_style"):
        config.refuse(key, True, "only rotary positions of halves are supported")
    return config


def _check_target(config: ConfigFile, target: LanguageModelConfig) -> None:
    """Compare sizes of the target that config.json states; Muse's assistants state none."""
    sizes = {
        "vocab_size": target.vocab_size,
        "target_hidden_size": target.decoder.hidden_size,
    }
    for key, size in sizes.items():
        if config.integer(key, size) != size:
            remedy = f"the target's is {size}; use a draft made for this target"
            raise config.mismatch(key, remedy)


def _draft_vocabulary(config: ConfigFile, vocab_size: int) -> int:
    count = config.integer("draft_vocab_size", vocab_size)
    if count > vocab_size:
        raise config.error("draft_vocab_size", f"vocab_size is only {vocab_size}")
    return count


def _block_size(config: ConfigFile) -> int:
    size = config.integer("block_size", DEFAULT_BLOCK)
    if size < 2:
        raise config.error("block_size", "a block of one row drafts nothing; it must be at least 2")
    return size


def _target_layers(config: ConfigFile, target: LanguageModelConfig) -> tuple[int, ...]:
    """List the layers whose output the draft reads."""
    ids, count = config.ids(LAYER_IDS), target.num_hidden_layers
    if not ids and config.ids(BOUNDARY_IDS):
        return read_boundaries(config, BOUNDARY_IDS, count)
    if not ids:
        raise config.error(LAYER_IDS, f"it must list layers of the target, 0..{count - 2}")
    if not all(low < high for low, high in pairwise(ids)) or ids[0] < 0:
        raise config.error(LAYER_IDS, "it must be ascending and start at 0 or later")
    if ids[-1] >= count:
        raise DraftMismatch(
            f"{config.file}: {LAYER_IDS} is {list(ids)}, and the target has {count} layers; use a "
            "draft made for this target"
        )
    if ids[-1] == count - 1:
        raise config.error(
            LAYER_IDS,
            f"it names the target's last layer, of {count}: whether its output is meant with or "
            "without the final norm is not known; use a draft that reads earlier layers",
        )
    return ids


def _layer_types(config: ConfigFile, count: int) -> list[str] | None:
    types = config.get("layer_types")
    if types is None:
        return None
    if not isinstance(types, list) or len(types) != count or {*map(str, types)} - {FULL, SLIDING}:
        raise config.error("layer_types", f"it must name {FULL} or {SLIDING} for {count} layers")
    return types


def _windows(config: ConfigFile, count: int, block_size: int) -> tuple[int | None, ...]:
    """Return the window of each layer; `use_swa` gives one to layers that have no types."""
    types = _layer_types(config, count)
    if types is None or SLIDING not in types:
        types = [SLIDING if config.switch("use_swa", False) else FULL] * count
    if SLIDING not in types:
        return (None,) * count
    key = "sliding_window" if config.get("swa_window_size") is None else "swa_window_size"
    # Muse's masks hide what is further away than the window; others count the row itself.
    width = config.integer(key) + (config.architecture == MUSE)
    if width < block_size:
        raise config.error(key, f"a window must hold a block of {block_size} tokens")
    return tuple(width if kind == SLIDING else None for kind in types)


def _causal_layers(config: ConfigFile, count: int) -> tuple[bool, ...]:
    for key in ("is_causal", "causal"):
        if config.get(key) is not None:
            return (config.switch(key, False),) * count
    types = _layer_types(config, count)
    if types is None or config.architecture == MUSE:
        return (False,) * count
    is_causal = not config.switch("sliding_window_non_causal", False)
    return tuple(is_causal and kind == SLIDING for kind in types)
