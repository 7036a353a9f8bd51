"""What an EAGLE-3 head's config.json says, checked against the target it was made for."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from specdecode_engine.forward.config_file import ConfigFile
from specdecode_engine.forward.errors import ConfigError
from specdecode_engine.forward.model_config import DecoderConfig, LlamaConfig, parse_decoder
from specdecode_engine.forward.rope_config import RopeConfig, parse_rope

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
VARIANTS = ("norm_before_fc", "fc_norm", "norm_output", "norm_before_residual")


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """One decoder layer over the target's features, with a vocabulary of its own.

    `capture` holds OUTPUT ids: id i is the residual stream that leaves the target's layer i.
    """

    decoder: DecoderConfig
    rope: RopeConfig
    capture: tuple[int, ...]
    vocab_size: int
    draft_vocab_size: int

    @classmethod
    def load(cls, folder: Path, target: LlamaConfig) -> "Eagle3Config":
        """Read `folder`/config.json; refuse variants that the head does not compute."""
        config = ConfigFile.open(folder / "config.json")
        _refuse_unsupported(config)
        _check_target(config, target)
        decoder = parse_decoder(config)
        vocab_size = config.integer("vocab_size")
        draft_vocab_size = config.integer("draft_vocab_size", vocab_size)
        if draft_vocab_size > vocab_size:
            raise config.error("draft_vocab_size", f"vocab_size is only {vocab_size}")
        return cls(
            decoder=decoder,
            rope=parse_rope(config, decoder.head_dim),
            capture=_capture(config, target.num_hidden_layers),
            vocab_size=vocab_size,
            draft_vocab_size=draft_vocab_size,
        )

    @property
    def hidden_size(self) -> int:
        """Width of the head's own hidden state."""
        return self.decoder.hidden_size

    @property
    def num_key_value_heads(self) -> int:
        """Heads that the head's key-value cache stores."""
        return self.decoder.num_key_value_heads

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.decoder.head_dim


def _refuse_unsupported(config: ConfigFile) -> None:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in ARCHITECTURES:
        raise config.error("architectures", f"an EAGLE-3 head says {' or '.join(ARCHITECTURES)}")
    config.refuse("num_hidden_layers", 1, "only heads of one layer are supported")
    section = config.section("eagle_config")
    for part in (config, section) if section else (config,):
        for variant in VARIANTS:
            part.refuse(variant, False, "this variant of EAGLE-3 is not supported")
        part.refuse("use_aux_hidden_state", True, "use a head trained on intermediate layers")


def _check_target(config: ConfigFile, target: LlamaConfig) -> None:
    if config.integer("vocab_size") != target.vocab_size:
        raise config.error("vocab_size", f"the target's is {target.vocab_size}; use its own head")
    config.refuse(
        "target_hidden_size",
        target.hidden_size,
        f"the target's hidden size is {target.hidden_size}; use a head made for it",
    )


def _capture(config: ConfigFile, layers: int) -> tuple[int, ...]:
    section = config.section("eagle_config")
    stated = section if section is not None and section.ids(LAYER_IDS) else config
    ids = stated.ids(LAYER_IDS)
    chosen = ids or (1, layers // 2 - 1, layers - 4)
    ascending = all(low < high for low, high in pairwise(chosen))
    rule = f"ascending ids of layers whose output is meant, within 0..{layers - 1}"
    if not ascending or chosen[0] < 0 or chosen[-1] >= layers:
        fault = f"is {list(ids)}" if ids else f"is missing and the usual {list(chosen)} do not fit"
        remedy = f"state the head's {rule}"
        raise ConfigError(stated.file, stated.prefix + LAYER_IDS, fault, remedy)
    for part in (config, section) if section else (config,):
        part.refuse("num_aux_hidden_states", len(chosen), f"{LAYER_IDS} names {len(chosen)}")
    return chosen
