"""Which files of a repository an engine reads: weights in safetensors, and what describes them."""

from collections.abc import Iterable
from dataclasses import dataclass

from specdecode_api.report import Reason
from specdecode_engine.fetch.faults import FetchError

_SUFFIXES = (".safetensors", ".json", ".jinja")
_CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository. Large ones are known by their SHA-256, others by their git id."""

    name: str
    bytes: int
    sha256: str | None
    git_id: str | None


def needed(files: Iterable[HubFile], uri: str) -> tuple[HubFile, ...]:
    """Choose what to download, in the order of names.

    Folders are left out: they hold other formats. So are the consolidated weights that some
    publishers put beside the same weights in shards.

    Raises:
        FetchError: this is no checkpoint in Hugging Face format with safetensors.
    """
    found = tuple(files)
    chosen = tuple(sorted((file for file in found if _is_needed(file.name)), key=_by_name))
    names = {file.name for file in chosen}
    if _CONFIG not in names:
        raise FetchError(
            Reason.CHECKPOINT_INVALID,
            f"{uri}: has no {_CONFIG}; name a model in Hugging Face format",
        )
    if not any(name.endswith(".safetensors") for name in names):
        others = [file.name for file in found if file.name.endswith((".bin", ".gguf", ".pt"))]
        held = f"only {', '.join(sorted(others)[:3])}" if others else "no weights at all"
        raise FetchError(
            Reason.CHECKPOINT_INVALID,
            f"{uri}: has no safetensors, {held}; name a revision or a model that has them",
        )
    return chosen


def _is_needed(name: str) -> bool:
    # Names with a dot in front are ours.
    is_left_out = "/" in name or name.startswith((".", "consolidated"))
    return name.endswith(_SUFFIXES) and not is_left_out


def _by_name(file: HubFile) -> str:
    return file.name
