"""The config.json of drafts that speculators wrote: their layers, their target, how they are used.

Speculators keeps the keys of the draft's layers in `transformer_layer_config`, and in
`speculators_config` the target that the draft was trained for (`verifier`) and the number of draft
tokens that its authors propose. Sources: vllm-project/speculators, `SpeculatorModelConfig`; vLLM,
which collects the hidden states that drafts are trained on.
"""

from dataclasses import dataclass
from pathlib import Path

from specdecode_engine.model.checkpoint.config_file import ConfigFile
from specdecode_engine.model.target.config import EMBEDDED
from specdecode_engine.model.target.language_model import LanguageModelConfig

KIND = "speculators_model_type"
KINDS = ("eagle3", "peagle", "dflash", "dspark", "mtp")
LAYER_TYPES = ("llama", "qwen3")
SIZES = ("hidden_size", "num_hidden_layers", "vocab_size")


def open_draft(folder: Path) -> ConfigFile:
    """Read a draft's config.json; refuse the kinds of speculators' drafts that are not computed."""
    config = ConfigFile.open(folder / "config.json")
    if config.get(KIND) not in (None, *KINDS):
        known = f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
        raise config.error(KIND, f"drafts of this kind are not supported; use one of {known}")
    return config


def read_boundaries(config: ConfigFile, key: str, count: int) -> tuple[int, ...]:
    """Return the layers, of `count`, whose output a draft reads, ascending.

    The draft names boundaries between layers: 0 is the embedding, i + 1 the output of layer i, that
    of the last layer before the final norm. Their order means nothing: vLLM concatenates hidden
    states by layer, for training and when it serves.

    Raises:
        DraftMismatch: the target has no such boundaries, or one is named twice.
    """
    layers = tuple(sorted(number - 1 for number in config.ids(key)))
    if len({*layers}) < len(layers) or layers[0] < EMBEDDED or layers[-1] >= count:
        rule = f"different boundaries between the target's {count} layers: 0..{count}"
        raise config.mismatch(key, f"use a draft made for this target, or state {rule}")
    return layers


def flatten_speculators(
    config: ConfigFile, kind: str, layer_types: tuple[str, ...] = LAYER_TYPES
) -> ConfigFile:
    """Return the config with the keys of the draft's layers next to its own.

    The layers' keys are often a copy of the target's, of which `tie_word_embeddings` is not about
    the draft.

    Args:
        layer_types: model types that the layers may have.

    Raises:
        ConfigError: the draft is of another kind, or its layers of another model type.
    """
    if config.get(KIND) != kind:
        raise config.error(KIND, f"supported: {kind}")
    layer = config.section("transformer_layer_config")
    if layer is None:
        remedy = "it must be an object with the sizes of the head's layer"
        raise config.error("transformer_layer_config", remedy)
    if layer.get("model_type") not in (None, *layer_types):
        raise layer.error("model_type", f"supported: {', '.join(layer_types)}")
    stated = {key: value for key, value in config.keys.items() if value is not None}
    of_layers = {key: value for key, value in layer.keys.items() if key != "tie_word_embeddings"}
    return ConfigFile(config.file, {**of_layers, **stated})


def proposed_draft_steps(config: ConfigFile) -> int | None:
    """Return how many draft tokens a draft's authors propose; None: they propose none."""
    section = config.section("speculators_config")
    methods = None if section is None else section.get("proposal_methods")
    if section is None or methods is None:
        return None
    if not isinstance(methods, list) or not all(isinstance(one, dict) for one in methods):
        raise section.error("proposal_methods", "it must be a list of objects")
    default = section.get("default_proposal_method")
    chosen = [one for one in methods if one.get("proposal_type") == default] or methods
    for one in chosen[:1]:
        method = ConfigFile(section.file, one, f"{section.prefix}proposal_methods.")
        if method.get("speculative_tokens") is not None:
            return method.integer("speculative_tokens")
    return None


@dataclass(frozen=True, slots=True)
class Verifier:
    """The target that a draft was trained for, as far as its config.json describes it."""

    name: str
    architectures: tuple[str, ...] = ()  # empty: not in config.json
    sizes: tuple[tuple[str, int], ...] = ()  # keys of the target's config.json, with values

    @classmethod
    def read(cls, config: ConfigFile) -> "Verifier | None":
        """Return the target of a draft; None: its config.json names none."""
        section = config.section("speculators_config")
        verifier = None if section is None else section.section("verifier")
        name = None if verifier is None else verifier.get("name_or_path")
        if verifier is None or not isinstance(name, str):
            return None
        names = verifier.get("architectures")
        architectures = tuple(map(str, names)) if isinstance(names, list) else ()
        stated = [key for key in SIZES if verifier.get(key) is not None]
        return cls(name, architectures, tuple((key, verifier.integer(key)) for key in stated))

    def warning(self, folder: Path, target: LanguageModelConfig) -> str | None:
        """Return why a draft seems to be made for another target; None: it may be for this one.

        A target of another name may still be the same model, in a folder of any name. So there is
        a warning only if another property differs too.
        """
        if _short(self.name) == _short(folder.name):
            return None
        differences = []
        if self.architectures and target.architecture not in self.architectures:
            wanted = " or ".join(self.architectures)
            differences.append(f"architecture {wanted} instead of {target.architecture}")
        found = {
            "hidden_size": target.decoder.hidden_size,
            "num_hidden_layers": target.num_hidden_layers,
            "vocab_size": target.vocab_size,
        }
        differences += [
            f"{key} {size} instead of {found[key]}"
            for key, size in self.sizes
            if size != found[key]
        ]
        if not differences:
            return None
        return (
            f"the draft was made for {self.name}, which has {', '.join(differences)}; expect an "
            "accept length near 1, or use a draft made for this target"
        )


def _short(name: str) -> str:
    """Return the last part of a path or of a name on the hub, without a revision."""
    return name.rstrip("/").rpartition("/")[2].partition("@")[0].lower()
