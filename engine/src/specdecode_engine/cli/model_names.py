"""Models by name: a folder, ORG/NAME of the Hugging Face Hub, or hf://ORG/NAME@REVISION.

No torch here, and no library of the Hub: a wrong name is refused at once.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from specdecode_api.boot import EngineBoot
from specdecode_api.model_uri import DOTS_PATTERN, HUB_URI_PATTERN
from specdecode_api.report import TerminationReason
from specdecode_engine.process import ConfigurationError

HUB = "hf://"
MODEL_FLAG = "--model-path"
_SHOWN_CHARS = 200
_REMEDY = "give a folder with config.json, ORG/NAME or hf://ORG/NAME@REVISION"


class ModelRefused(ConfigurationError):
    """A model that cannot be read; `reason` is that of the termination message."""

    def __init__(self, message: str, reason: TerminationReason) -> None:
        super().__init__(message)
        self.reason = reason


def with_model_flag(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of `serve` with the flag before the model that stands first.

    Raises:
        ConfigurationError: the flag is there as well.
    """
    if not arguments or arguments[0].startswith("-"):
        return list(arguments)
    model, *rest = arguments
    if any(word.partition("=")[0] == MODEL_FLAG for word in rest):
        raise ConfigurationError(f"serve {model}: {MODEL_FLAG} names a model too; remove one")
    return [MODEL_FLAG, model, *rest]


def hub_uri(name: str) -> str | None:
    """Return the URI of a model of the Hub, None for a folder.

    A folder that is also the name of a model on the Hub is the folder.

    Raises:
        ModelRefused: it is neither.
    """
    if name.startswith(HUB):
        if not _is_hub_uri(name):
            raise _refused(f"{name}: not a model of the Hugging Face Hub; {_REMEDY}")
        return name
    if _is_folder(Path(name)):
        return None
    if not _is_hub_uri(HUB + name):
        raise _refused(f"{name}: no such folder, and not a name of the Hugging Face Hub; {_REMEDY}")
    return HUB + name


def hub_name(model: str) -> str:
    """Return the name in the API of a model of the Hub."""
    return model.removeprefix(HUB).partition("@")[0]


def check_adapter_names(boot: EngineBoot) -> None:
    """Raise if an adapter has the name that the model will have, which follows from the disk.

    Raises:
        ConfigurationError: it has, or there is no such model.
    """
    model = boot.model
    if model.served_name is None and hub_uri(model.path) is not None:
        named = model.model_copy(update={"served_name": hub_name(model.path)})
        boot = boot.model_copy(update={"model": named})
    if (error := boot.adapter_name_error) is not None:
        message = error.replace("model.served_name", "--served-model-name (model.served_name)")
        raise ConfigurationError(f"--lora-modules (adapters.modules): {message}")


def _is_folder(path: Path) -> bool:
    """Whether a path is a folder with a model, or a file in a format that is refused by its name.

    Raises:
        ModelRefused: it is a folder without a model, another file, or cannot be read.
    """
    try:
        if path.is_dir() and not _has_model(path):
            raise _refused(f"{path / 'config.json'}: no such file; {_REMEDY}")
        if path.is_file() and path.suffix != ".gguf":
            raise _refused(f"{path}: a file, not a folder; {_REMEDY}")
        return path.exists()
    except OSError as error:
        raise _refused(f"{str(path)[:_SHOWN_CHARS]}: {error.strerror}; {_REMEDY}") from None


def _is_hub_uri(uri: str) -> bool:
    return bool(re.fullmatch(HUB_URI_PATTERN, uri)) and not re.search(DOTS_PATTERN, uri)


def _has_model(folder: Path) -> bool:
    """Whether a folder has a model, maybe in a format that the engine refuses by its name."""
    names = ("config.json", "adapter_config.json")
    return any((folder / name).exists() for name in names) or any(folder.glob("*.gguf"))


def _refused(message: str) -> ModelRefused:
    return ModelRefused(message, TerminationReason.CHECKPOINT_INVALID)
