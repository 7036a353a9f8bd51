"""The resource in the making: its fields, where they come from, and what was dropped."""

from dataclasses import dataclass, field
from typing import Any

from specdecode_operator.convert.options import Option
from specdecode_operator.convert.secrets import SecretReference


@dataclass(frozen=True, slots=True)
class Dropped:
    """A flag or variable that the resource does not contain."""

    given: str
    """With its value, unless that may be a key."""
    reason: str

    def line(self) -> str:
        """For people, on one line."""
        return f"{self.given}: {self.reason}"


def as_written(value: str) -> str:
    """A value as Kubernetes reads it in arguments and variables, where $(NAME) is replaced."""
    return value.replace("$(", "$$(")


@dataclass(slots=True)
class ResourceDraft:
    """A spec that flags fill in."""

    spec: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)  # flag as given, by path of the field
    dropped: list[Dropped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    secrets: list[SecretReference] = field(default_factory=list)

    def set(self, path: str, value: Any, origin: str = "") -> None:
        """Set a field, such as `engine.kvCache.size`."""
        *parents, name = path.split(".")
        inside = self.spec
        for parent in parents:
            inside = inside.setdefault(parent, {})
        inside[name] = value
        self.origins[path] = origin

    def take(self, option: Option, path: str, value: Any) -> None:
        """Set a field from a flag."""
        self.set(path, value, option.given)

    def get(self, path: str, default: Any = None) -> Any:
        """A field's value."""
        inside: Any = self.spec
        for name in path.split("."):
            if not isinstance(inside, dict) or name not in inside:
                return default
            inside = inside[name]
        return inside

    def remove(self, path: str) -> None:
        """Remove a field, and what is empty without it."""
        parent, _, name = path.rpartition(".")
        inside = self.get(parent) if parent else self.spec
        if isinstance(inside, dict):
            inside.pop(name, None)
            if not inside and parent:
                self.remove(parent)

    def drop(self, given: str, reason: str) -> None:
        """List what the resource does not contain."""
        if (found := Dropped(given, reason)) not in self.dropped:
            self.dropped.append(found)
