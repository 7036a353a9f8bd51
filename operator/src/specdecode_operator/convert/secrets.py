"""Which values may be keys, and the Secrets that contain them instead of the resource."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from specdecode_api.key_mask import without_key

_NAME_PARTS: Final = frozenset(
    {"key", "keys", "apikey", "token", "secret", "password", "passwd", "credential"}
    | {"credentials", "auth", "authorization"}
)
_KEY: Final = re.compile(
    r"(?<![A-Za-z0-9])(hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|AKIA|AIza|nvapi-|eyJ)"
    r"[A-Za-z0-9_.-]{8,}"
)
_USER_OF_URL: Final = re.compile(r"://[^/\s@]+@")
_RUN: Final = re.compile(r"[A-Za-z0-9+=~]{20,}")
_LONGEST_SHOWN: Final = 160


@dataclass(frozen=True, slots=True)
class SecretReference:
    """A Secret that the resource names: its keys, each with the variable that has its value."""

    name: str
    variables: tuple[tuple[str, str], ...]
    purpose: str

    def command(self) -> str:
        """The command that creates it from the environment."""
        literals = (f'--from-literal={key}="${variable}"' for key, variable in self.variables)
        return " ".join(["kubectl create secret generic", self.name, *literals])


def is_secret_name(name: str) -> bool:
    """Whether a variable or a JSON key of this name has a secret as its value."""
    words = re.split(r"[^A-Za-z0-9]+", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name))
    return not _NAME_PARTS.isdisjoint(word.lower() for word in words)


def may_contain_key(text: str) -> bool:
    """Whether a value looks like a key, or contains one."""
    if _KEY.search(text) or _USER_OF_URL.search(text):
        return True
    if any(map(_is_random, _RUN.findall(text))):
        return True
    try:
        document = json.loads(text) if text.lstrip().startswith(("{", "[")) else None
        return _has_secret_name(document)
    except (ValueError, RecursionError):
        # What cannot be read cannot be checked.
        return True


def shown(words: Sequence[str]) -> str:
    """Values on one line, without what may be a key."""
    return " ".join(map(_shown, words))


def contains_any(text: str, secrets: Iterable[str]) -> bool:
    """Whether a text contains the value of a secret; short ones, such as EMPTY, are words."""
    return any(len(secret) >= 8 and secret in text for secret in secrets)


def _shown(word: str) -> str:
    if may_contain_key(word):
        return f"<{len(word)} characters>"
    text = without_key(word)
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _is_random(run: str) -> bool:
    return all(re.search(kind, run) for kind in ("[a-z]", "[A-Z]", "[0-9]"))


def _has_secret_name(document: Any) -> bool:
    if isinstance(document, dict):
        return any(
            (is_secret_name(name) and isinstance(value, str)) or _has_secret_name(value)
            for name, value in document.items()
        )
    return isinstance(document, list) and any(map(_has_secret_name, document))
