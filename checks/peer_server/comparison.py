"""What is better and what is missing here, next to the peers: the rows of comparison.toml."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specdecode_api.peer_flags import Peer

FILE = Path(__file__).parent / "comparison.toml"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a peer does, in Markdown, and the file of its wheel that shows it."""

    text: str
    source: str
    has: str | None = None
    lacks: str | None = None

    def error(self, sources: Mapping[str, str]) -> str | None:
        """Return why the source does not show the claim; None if it does.

        Args:
            sources: text of modules by path.
        """
        text = sources.get(self.source)
        if text is None:
            return f"there is no {self.source}"
        if self.has is not None and self.has not in text:
            return f"{self.source} does not have {self.has}"
        if self.lacks is not None and self.lacks in text:
            return f"{self.source} has {self.lacks}"
        return None


@dataclass(frozen=True, slots=True)
class Topic:
    """A row: what is here, with links from docs/, and at each peer of which something is known."""

    topic: str
    here: str
    claims: Mapping[Peer, Claim]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both tables."""

    better: tuple[Topic, ...]
    missing: tuple[Topic, ...]

    def claims(self, peer: Peer) -> list[tuple[str, Claim]]:
        """Return the claims of a peer with their topics."""
        topics = (*self.better, *self.missing)
        return [(each.topic, each.claims[peer]) for each in topics if peer in each.claims]


@cache
def read_comparison() -> Comparison:
    """Read the tables of this package."""
    document = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return Comparison(*(tuple(map(_topic, document[name])) for name in ("better", "missing")))


def _topic(row: Mapping[str, Any]) -> Topic:
    claims = {peer: Claim(**row[peer]) for peer in Peer if peer in row}
    return Topic(row["topic"], row["here"], claims)


def unproven(comparison: Comparison, peer: Peer, sources: Mapping[str, str]) -> Iterator[str]:
    """Yield claims of a peer that its sources do not show."""
    for topic, claim in comparison.claims(peer):
        error = claim.error(sources)
        if error is not None:
            yield f"{topic}: {error} in {peer}"
