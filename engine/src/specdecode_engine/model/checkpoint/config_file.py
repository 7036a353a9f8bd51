"""Reads one config.json: every value is checked for its type, every error names file and key."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from specdecode_api.report import TerminationReason

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


MODEL_CONFIG = "config.json"
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")


SHOWN_CHARACTERS = 200
"""Of a key or a value, in an error."""


class CheckpointError(Exception):
    """A checkpoint that cannot be loaded; the message has the file, the error and the remedy."""

    reason: ClassVar[TerminationReason] = TerminationReason.CHECKPOINT_INVALID


class ConfigError(CheckpointError):
    """One key of a config.json that is missing, malformed or not supported."""

    def __init__(self, file: Path, key: str, fault: str, remedy: str) -> None:
        super().__init__(f"{file}: {key} {fault}; {remedy}")


class DraftMismatch(CheckpointError):
    """The draft's checkpoint does not belong to the target's; the message holds both numbers."""

    reason = TerminationReason.DRAFT_MISMATCH


def cut(text: str) -> str:
    """Shorten a text of a file for an error."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The keys of one config.json, or of one object in it; a key that holds null is absent."""

    file: Path
    keys: Mapping[str, object]
    prefix: str = ""

    @classmethod
    def open(cls, file: Path) -> "ConfigFile":
        """Read `file`, which must hold one JSON object."""
        try:
            keys = json.loads(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            refuse_other_formats(file.parent)
            raise CheckpointError(
                f"{file}: no such file; give the path of a folder in Hugging Face format"
            ) from None
        except RecursionError:
            raise CheckpointError(f"{file}: too many levels of JSON; download it again") from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{file}: unreadable ({error}); download it again") from error
        if not isinstance(keys, dict):
            raise CheckpointError(f"{file}: not a JSON object; download it again")
        if file.name == MODEL_CONFIG:
            _refuse_adapter_files(file)
        return cls(file, keys)

    def error(self, key: str, remedy: str) -> ConfigError:
        """Build the error that `key` has the value it has, or is missing; long ones are cut."""
        value = self.keys.get(key)
        fault = "is missing" if value is None else f"is {cut(repr(value))}"
        return ConfigError(self.file, self.prefix + cut(key), fault, remedy)

    def mismatch(self, key: str, remedy: str) -> DraftMismatch:
        """Build the error that `key` does not fit the target; `remedy` has the target's value."""
        return DraftMismatch(str(self.error(key, remedy)))

    def get(self, key: str) -> object:
        """Return the unchecked value of `key`, None if absent."""
        return self.keys.get(key)

    @property
    def architecture(self) -> str:
        """The first name under `architectures`; empty if there is none."""
        names = self.keys.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Return an integer of at least `least`; it must be there if there is no default."""
        value = self.keys.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
            raise self.error(key, f"it must be {kind}")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """Return a positive finite number; it must be there if there is no default."""
        value = self.keys.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(key, "it must be a number")
        try:
            number = float(value)
        except OverflowError:  # an integer
            number = math.inf
        if not (number > 0 and math.isfinite(number)):
            raise self.error(key, "it must be positive and finite")
        return number

    def switch(self, key: str, default: bool) -> bool:
        value = self.keys.get(key, default)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, "it must be true or false")
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        """Return token or layer ids: one integer, a list of them, or none."""
        value = self.keys.get(key)
        listed = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in listed):
            raise self.error(key, "it must be an integer or a list of integers")
        return tuple(listed)

    def section(self, key: str) -> "ConfigFile | None":
        """Return the object under `key`, None if absent."""
        value = self.keys.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, "it must be an object")
        return ConfigFile(self.file, value, f"{self.prefix}{key}.")

    def dtype(self) -> torch.dtype | None:
        """Return the type that the weights were saved in, under either of its two names."""
        key = "dtype" if self.keys.get("dtype") is not None else "torch_dtype"
        name = self.keys.get(key)
        if name is None:
            return None
        if not isinstance(name, str) or name.removeprefix("torch.") not in DTYPES:
            raise self.error(key, f"convert the weights to one of {', '.join(DTYPES)}")
        return DTYPES[name.removeprefix("torch.")]

    def refuse(self, key: str, harmless: object, remedy: str) -> None:
        """Raise if `key` is present with any value but `harmless`."""
        value = self.keys.get(key)
        if value is not None and value != harmless:
            raise self.error(key, remedy)


def refuse_other_formats(path: Path) -> None:
    """Raise if a folder, or the path of a file, holds GGUF or a LoRA adapter instead of a model."""
    gguf = [path] if path.suffix == ".gguf" else sorted(path.glob("*.gguf"))
    if gguf:
        raise CheckpointError(
            f"{gguf[0]}: GGUF is not supported; use the model's checkpoint in Hugging Face format, "
            "with config.json and safetensors"
        )
    adapter = path / ADAPTER_FILES[0]
    if adapter.exists():
        raise CheckpointError(
            f"{adapter}: a LoRA adapter is not a model; give its base model, and the adapter with "
            "--lora-modules NAME=FOLDER (adapters.modules), or with --adapter of check"
        )


def _refuse_adapter_files(config: Path) -> None:
    """Raise if a model's folder has files of an adapter, which some programs would apply to it."""
    for name in ADAPTER_FILES:
        if config.with_name(name).exists():
            raise CheckpointError(
                f"{config.parent} contains a model ({config.name}) and a LoRA adapter ({name}); "
                "move the adapter's files to a folder of their own"
            )
