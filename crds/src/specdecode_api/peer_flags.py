"""The flags of vLLM and SGLang, and what each of them is here: the rows of peer_flags.toml."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

_OPTIMIZATION = "--optimization-level"  # vLLM also reads -O3 and -O 3


class Peer(StrEnum):
    """An engine whose flags are understood; where both define a flag, vLLM's meaning counts."""

    VLLM = "vllm"
    SGLANG = "sglang"


class Takes(StrEnum):
    """What follows a flag on the command line."""

    VALUE = "value"
    VALUES = "values"  # one or more
    OPTIONAL = "optional"  # a value or none
    SWITCH = "switch"
    BOOLEAN = "boolean"  # a switch that also exists as --no-FLAG


class Treatment(StrEnum):
    """What becomes of a flag that a peer defines."""

    TAKEN = "taken"
    IGNORED = "ignored"  # with one log line
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class PeerFlag:
    """A flag, or a key of --speculative-config."""

    flag: str
    peers: tuple[Peer, ...]
    takes: Takes
    treatment: Treatment
    aliases: tuple[str, ...] = ()
    field: str | None = None  # of the boot file, that a taken flag sets
    conversion: str | None = None  # name of how its value is read
    note: str | None = None  # what the log adds where it is taken
    remedy: str | None = None  # why it is not taken, and what to use instead
    accepts: tuple[str, ...] = ()  # values of a refused flag that ask for nothing
    is_secret: bool = False  # its value is never shown

    @property
    def is_switch(self) -> bool:
        """Whether no value follows it."""
        return self.takes in (Takes.SWITCH, Takes.BOOLEAN)

    def asks_for_nothing(self, words: Sequence[str]) -> bool:
        """Whether the values of a refused flag are what the engine does anyway."""
        accepts = self.accepts or (("false",) if self.is_switch else ())
        return bool(words) and all(word in accepts for word in words)

    @property
    def spellings(self) -> Mapping[str, bool]:
        """Every name of the flag with the value that it has as a switch.

        A boolean of vLLM also exists with `no-` before it, and with enable for disable.
        """
        found = dict.fromkeys((self.flag, *self.aliases), True)
        if self.takes is not Takes.BOOLEAN:
            return found
        for name in (self.flag, *self.aliases):
            if name.startswith("--"):
                found[f"--no-{name[2:]}"] = False
        if Peer.VLLM in self.peers:
            for prefix, inverse in (("--enable-", "--disable-"), ("--disable-", "--enable-")):
                if self.flag.startswith(prefix):
                    found[inverse + self.flag.removeprefix(prefix)] = False
        return found


@dataclass(frozen=True, slots=True)
class PeerFlags:
    """The whole table."""

    versions: Mapping[Peer, str]  # whose flags the rows are
    flags: Mapping[str, PeerFlag]
    earlier: Mapping[str, PeerFlag]  # of earlier releases
    speculative_config: Mapping[str, PeerFlag]  # keys of vLLM's --speculative-config

    def by_spelling(self) -> dict[str, tuple[PeerFlag, bool]]:
        """Rows by every name of their flags; the name of a flag comes before inverse forms."""
        rows = [*self.flags.values(), *self.earlier.values()]
        found = {row.flag: (row, True) for row in rows}
        for row in rows:
            for name, value in row.spellings.items():
                found.setdefault(name, (row, value))
        return found


def normalized(word: str) -> str:
    """Write a flag with hyphens, as vLLM's parser does; keys and values stay."""
    if word.startswith("-O") and len(word) > 1:
        level = word[2:].removeprefix("=")
        return f"{_OPTIMIZATION}={level}" if level else _OPTIMIZATION
    found = re.match(r"--[^=.]*", word)
    if found is None:
        return word
    return found.group().replace("_", "-") + word[found.end() :]


def is_flag(word: str) -> bool:
    """Whether a word begins a flag, as argparse decides: a negative number does not."""
    return word.startswith("-") and not re.fullmatch(r"-|-\d+|-\d*\.\d+", word)


@cache
def read_peer_flags() -> PeerFlags:
    """Read the table of this package."""
    text = (files("specdecode_api") / "peer_flags.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    texts = document["remedies"], document["notes"]
    defaults = {"peer": "vllm", "takes": "value"}
    return PeerFlags(
        versions={Peer(name): version for name, version in document["versions"].items()},
        flags={name: _row(name, row, *texts) for name, row in document["flags"].items()},
        earlier={
            name: replace(_row(name, row, *texts), peers=(Peer.SGLANG,))
            for name, row in document["earlier"].items()
        },
        speculative_config={
            name: _row(name, defaults | row, *texts)
            for name, row in document["speculative_config"].items()
        },
    )


def _row(
    flag: str, row: Mapping[str, Any], remedies: Mapping[str, str], notes: Mapping[str, str]
) -> PeerFlag:
    treatment = next(
        (each for each in (Treatment.IGNORED, Treatment.REFUSED) if each in row), Treatment.TAKEN
    )
    return PeerFlag(
        flag=flag,
        peers=tuple(Peer) if row["peer"] == "both" else (Peer(row["peer"]),),
        takes=Takes(row["takes"]),
        treatment=treatment,
        aliases=tuple(row.get("aliases", ())),
        field=row.get("field"),
        conversion=row.get("conversion"),
        note=notes[row["note"]] if "note" in row else None,
        remedy=None if treatment is Treatment.TAKEN else remedies[row[treatment]],
        accepts=tuple(row.get("accepts", ())),
        is_secret=row.get("secret", False),
    )
