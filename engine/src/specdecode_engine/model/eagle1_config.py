"""The config.json of an EAGLE-1 head, checked against the target it was made for."""

from dataclasses import dataclass
from pathlib import Path

from specdecode_engine.model.config_file import ConfigFile
from specdecode_engine.model.model_config import (
    DecoderConfig,
    LlamaConfig,
    parse_decoder,
    refuse_windows,
)
from specdecode_engine.model.rope_config import RopeConfig, parse_rope

ARCHITECTURES = ("LlamaForCausalLM", "LlamaForCausalLMEagle", "EagleLlamaForCausalLM")
"""The authors' heads call themselves plain Llamas; servers that convert them rename them."""


@dataclass(frozen=True, slots=True)
class Eagle1Config:
    """Decoder layers after one linear map; hidden state and vocabulary are the target's."""

    decoder: DecoderConfig
    rope: RopeConfig
    num_hidden_layers: int
    vocab_size: int
    bias: bool  # of the linear map; absent means true

    @classmethod
    def load(cls, folder: Path, target: LlamaConfig) -> "Eagle1Config":
        """Read `folder`/config.json."""
        config = ConfigFile.open(folder / "config.json")
        names = config.get("architectures")
        if not isinstance(names, list) or len(names) != 1 or names[0] not in ARCHITECTURES:
            raise config.error("architectures", f"an EAGLE head has {' or '.join(ARCHITECTURES)}")
        refuse_windows(config, has_switch=config.get("use_sliding_window") is not None)
        _check_target(config, target)
        decoder = parse_decoder(config, always_qkv_bias=config.switch("qkv_bias", False))
        return cls(
            decoder=decoder,
            rope=parse_rope(config, decoder.head_dim),
            num_hidden_layers=config.integer("num_hidden_layers"),
            vocab_size=target.vocab_size,
            bias=config.switch("bias", True),
        )


def _check_target(config: ConfigFile, target: LlamaConfig) -> None:
    for key, wanted in (
        ("hidden_size", target.decoder.hidden_size),
        ("vocab_size", target.vocab_size),
    ):
        if config.integer(key) != wanted:
            raise config.mismatch(key, f"the target's is {wanted}; use a head made for this target")
