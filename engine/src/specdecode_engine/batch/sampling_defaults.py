"""Sampling parameters that requests leave out, as generation_config.json states them.

`specdecode-engine check`, the start of an engine and the server read them here, so that all three
accept the same files. Ranges are those of requests; what transformers writes for a filter that is
off is off.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from specdecode_api.report import TerminationReason

GENERATION_CONFIG = "generation_config.json"
LEAST_TOP_P = 1e-7
"""Keeps the likeliest token alone; a smaller number could become 0 in 32 bits, and keep none."""

MOST_TOP_K = 2**31 - 1


class InvalidDefault(Exception):
    """A generation_config.json whose defaults cannot be used; file, key, value and remedy."""

    reason: ClassVar[TerminationReason] = TerminationReason.CHECKPOINT_INVALID


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """As in `SamplingParams`: temperature 0 is greedy, top_k 0 and top_p 1 are off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


@dataclass(frozen=True, slots=True)
class _Range:
    """What a key may hold besides null; `read` returns None for anything else."""

    allowed: str
    read: Callable[[object], float | None]


def _number(value: object) -> float | None:
    """Return a finite number; integers may have any size."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, int) or math.isfinite(value) else None


def _within(least: float, most: float, *, excludes_least: bool = False) -> _Range:
    def read(value: object) -> float | None:
        number = _number(value)
        if number is None or not least <= number <= most:
            return None
        return None if excludes_least and number == least else float(number)

    above = f"above {least:g}" if excludes_least else f"{least:g}"
    return _Range(f"a number from {above} to {most:g}", read)


def _top_k(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return max(value, 0) if -1 <= value <= MOST_TOP_K else None


def _top_p(value: object) -> float | None:
    number = _number(value)
    return None if number is None else float(min(max(number, LEAST_TOP_P), 1))


_RANGES: Mapping[str, _Range] = {
    "temperature": _within(0, 2),
    "top_p": _Range("a number", _top_p),
    "top_k": _Range(f"an integer from -1 to {MOST_TOP_K}; -1 and 0 turn it off", _top_k),
    "min_p": _within(0, 1),
    "repetition_penalty": _within(0, 10, excludes_least=True),
    "presence_penalty": _within(-2, 2),
    "frequency_penalty": _within(-2, 2),
}


def read_sampling_defaults(folder: Path) -> SamplingDefaults:
    """Read the defaults of a checkpoint; without the file, or with null, those of requests.

    `do_sample: false` is temperature 0. `top_p` of 1 and more is off, and of 0 and less keeps the
    likeliest token.

    Raises:
        InvalidDefault: a value is of another type or out of range.
    """
    file = folder / GENERATION_CONFIG
    if not file.exists():
        return SamplingDefaults()
    try:
        keys = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidDefault(f"{file}: unreadable ({error}); download it again") from error
    if not isinstance(keys, dict):
        raise InvalidDefault(f"{file}: not a JSON object; download it again")
    found: dict[str, Any] = {
        key: _read(file, key, keys[key]) for key in _RANGES if keys.get(key) is not None
    }
    samples = keys.get("do_sample")
    if samples is not None and not isinstance(samples, bool):
        raise _error(file, "do_sample", samples, "true or false")
    if samples is False:
        found["temperature"] = 0.0
    return replace(SamplingDefaults(), **found)


def _read(file: Path, key: str, value: object) -> float:
    one = _RANGES[key]
    number = one.read(value)
    if number is None:
        raise _error(file, key, value, one.allowed)
    return number


def _error(file: Path, key: str, value: object, allowed: str) -> InvalidDefault:
    shown = json.dumps(value)[:80]
    return InvalidDefault(f"{file}: {key} is {shown}; set it to {allowed}, or remove it")
