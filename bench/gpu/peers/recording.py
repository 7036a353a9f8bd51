"""Whether a trained head's drafted tokens were accepted, token by token, over six kinds of text.

The file is written with the example models. Only the first draft step is recorded, so a head that
follows it accepts equally well at every step; draft steps of a trained head differ.
"""

import itertools
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).resolve().parents[3] / "examples" / "models" / "acceptance.json"

Bits = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """Bits by kind of text, equally many of each."""

    kinds: Mapping[str, Bits]

    def agreement(self, length: int) -> Bits:
        """Return bits for a cycle: a part per kind, one after another, and ones for what is left.

        Raises:
            ValueError: the cycle is longer than the recording.
        """
        part, recorded = length // len(self.kinds), len(next(iter(self.kinds.values())))
        if part > recorded:
            raise ValueError(f"{part} tokens of the cycle per kind; {recorded} are recorded")
        bits = [bit for one in self.kinds.values() for bit in one[:part]]
        return (*bits, *[1] * (length - len(bits)))

    def statistics(self) -> dict[str, dict[str, float]]:
        """Return by kind what acceptance is like."""
        return {kind: describe(bits) for kind, bits in self.kinds.items()}


def read_recording(file: Path = FILE) -> Recording:
    """Read the file."""
    document = json.loads(file.read_text())
    tokens = document["tokens"]
    return Recording(
        {kind: unpack_bits(digits, tokens) for kind, digits in document["kinds"].items()}
    )


def unpack_bits(digits: str, count: int) -> Bits:
    """Read bits from hexadecimal digits; the first bit is the lowest one of the number."""
    number = int(digits, 16)
    return tuple(number >> place & 1 for place in range(count))


def describe(bits: Bits) -> dict[str, float]:
    """Return mean, run lengths, and the correlation of neighbours, 0 where nothing varies."""
    runs = [(bit, len([*run])) for bit, run in itertools.groupby(bits)]
    accepted = [length for bit, length in runs if bit] or [0]
    rejected = [length for bit, length in runs if not bit] or [0]
    first, second = bits[:-1], bits[1:]
    varies = len({*first}) > 1 and len({*second}) > 1
    return {
        "tokens": len(bits),
        "mean": round(statistics.fmean(bits), 4),
        "mean_accepted_run": round(statistics.fmean(accepted), 3),
        "longest_accepted_run": max(accepted),
        "mean_rejected_run": round(statistics.fmean(rejected), 3),
        "longest_rejected_run": max(rejected),
        "correlation": round(statistics.correlation(first, second), 4) if varies else 0.0,
    }
