"""The config.json of drafts that speculators wrote: their layers, their target, how they are used.

Speculators keeps the keys of the draft's layers in `transformer_layer_config`, and in
`speculators_config` the target that the draft was trained for (`verifier`) and the number of draft
tokens that its authors propose. Source: vllm-project/speculators, `SpeculatorModelConfig`.
"""

from pathlib import Path

from specdecode_engine.model.config_file import ConfigFile

KIND = "speculators_model_type"
CONFIG = "config.json"
LAYER_TYPES = ("llama", "qwen3")
COMPARED = ("architectures", "hidden_size", "num_hidden_layers", "vocab_size")
"""What a draft may state of its target besides the name."""


def flatten_speculators(config: ConfigFile, kind: str) -> ConfigFile:
    """Return the config with the keys of the draft's layers next to its own.

    Raises:
        ConfigError: the draft is of another kind, or its layers of another model type.
    """
    if config.get(KIND) != kind:
        raise config.error(KIND, f"supported: {kind}")
    layer = config.section("transformer_layer_config")
    if layer is None:
        remedy = "it must be an object with the sizes of the head's layer"
        raise config.error("transformer_layer_config", remedy)
    if layer.get("model_type") not in (None, *LAYER_TYPES):
        raise layer.error("model_type", f"supported: {', '.join(LAYER_TYPES)}")
    stated = {key: value for key, value in config.keys.items() if value is not None}
    return ConfigFile(config.file, {**layer.keys, **stated})


def proposed_draft_steps(draft: Path) -> int | None:
    """Return how many draft tokens a draft's authors propose; None: they propose none."""
    config = ConfigFile.open(draft / CONFIG)
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


def verifier_warning(draft: Path, target: Path) -> str | None:
    """Return why a draft seems to be made for another target; None: nothing speaks for it.

    A target of another name may still be the same model, in a folder of any name. So there is a
    warning only if another property differs too.
    """
    section = ConfigFile.open(draft / CONFIG).section("speculators_config")
    verifier = None if section is None else section.section("verifier")
    name = None if verifier is None else verifier.get("name_or_path")
    if verifier is None or not isinstance(name, str):
        return None
    config = ConfigFile.open(target / CONFIG)
    names = (target.name, config.get("_name_or_path"))
    if _short(name) in [_short(one) for one in names if isinstance(one, str)]:
        return None
    parts = [part for part in (config, config.section("text_config")) if part is not None]
    stated = {key: verifier.get(key) for key in COMPARED if verifier.get(key) is not None}
    differences = [
        f"{key} {wanted} instead of {part.get(key)}"
        for key, wanted in stated.items()
        for part in parts
        if part.get(key) not in (None, wanted)
    ]
    if not differences:
        return None
    return (
        f"the draft {draft.name} was made for {name}, which has {', '.join(differences)}; expect "
        "an accept length near 1, or use a draft made for this target"
    )


def _short(name: str) -> str:
    """Return the last part of a path or of a name on the hub, without a revision."""
    return name.rstrip("/").rpartition("/")[2].partition("@")[0].lower()
