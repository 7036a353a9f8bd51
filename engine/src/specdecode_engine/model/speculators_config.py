"""The config.json of an EAGLE-3 head that speculators wrote, in the form of the other writers.

Speculators keeps the keys of the head's layer in an object of their own, and numbers the
boundaries between the target's layers: boundary i + 1 is the output of layer i.

Source: vllm-project/speculators, `Eagle3SpeculatorConfig`; vLLM reads the same keys.
"""

from specdecode_engine.model.config_file import ConfigFile

SPECULATORS_ARCHITECTURES = ("Eagle3Speculator", "Eagle3DraftModel")
LAYER = "transformer_layer_config"
KIND = "speculators_model_type"


def is_of_speculators(config: ConfigFile) -> bool:
    """Whether speculators wrote a config, or it was made of one that it wrote."""
    return config.get(KIND) is not None


def flatten_speculators(config: ConfigFile) -> ConfigFile:
    """Return the config with the keys of its layer next to its own.

    Raises:
        ConfigError: it is of another kind of draft, or its layer is not Llama's.
    """
    if config.get(KIND) != "eagle3":
        raise config.error(KIND, "supported: eagle3")
    layer = config.section(LAYER)
    if layer is None:
        raise config.error(LAYER, "it must be an object with the sizes of the head's layer")
    layer.refuse("model_type", "llama", "supported: llama")
    return ConfigFile(config.file, {**layer.keys, **config.keys})
