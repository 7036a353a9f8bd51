"""The files of a repository that an engine reads: safetensors, configuration and tokenizer."""

from collections.abc import Iterable
from dataclasses import dataclass

from specdecode_api.report import TerminationReason
from specdecode_engine.fetch.faults import FetchError

_SUFFIXES = (".safetensors", ".json", ".jinja")
_CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository. Large files have a SHA-256, others a git blob id."""

    name: str
    bytes: int
    sha256: str | None
    git_id: str | None


def needed(files: Iterable[HubFile], uri: str) -> tuple[HubFile, ...]:
    """Choose the files to download, ordered by name.

    Folders are left out because they contain other formats; so are consolidated weights, which
    some publishers provide in addition to the same weights in shards.

    Raises:
        FetchError: not a checkpoint in Hugging Face format with safetensors.
    """
    found = tuple(files)
    chosen = tuple(sorted((file for file in found if _is_needed(file.name)), key=_by_name))
    names = {file.name for file in chosen}
    if _CONFIG not in names:
        raise FetchError(
            TerminationReason.CHECKPOINT_INVALID,
            f"{uri}: has no {_CONFIG}; name a model in Hugging Face format",
        )
    if not any(name.endswith(".safetensors") for name in names):
        others = [file.name for file in found if file.name.endswith((".bin", ".gguf", ".pt"))]
        held = f"only {', '.join(sorted(others)[:3])}" if others else "no weights at all"
        raise FetchError(
            TerminationReason.CHECKPOINT_INVALID,
            f"{uri}: has no safetensors, {held}; name a revision or a model that has them",
        )
    return chosen


def _is_needed(name: str) -> bool:
    # Names that begin with a dot are reserved for this cache.
    is_left_out = "/" in name or name.startswith((".", "consolidated"))
    return name.endswith(_SUFFIXES) and not is_left_out


def _by_name(file: HubFile) -> str:
    return file.name
