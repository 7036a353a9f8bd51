"""Changes to valid bodies, as JSON values and as bytes."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

from checks.fuzz.fields import NUMBERS, STRINGS, anything

Json = Any
Container = dict[Any, Json] | list[Json]


MAX_CHARS = 2**20
"""Characters of a changed body as JSON: repetitions of repetitions would take gigabytes."""


def mutate(rng: random.Random, body: Json) -> Json:
    """Return a copy with one to three changes, of at most `MAX_CHARS` if the body has fewer."""
    while True:
        changed = _changed(rng, body)
        if json_chars(changed, {}) <= max(MAX_CHARS, json_chars(body, {})):
            return changed


def json_chars(value: Json, known: dict[int, int]) -> int:
    """Return about how many characters a value has as JSON, without writing them.

    Args:
        known: of objects and lists by their identity; repetitions contain the same ones.
    """
    if not isinstance(value, dict | list):
        return len(json.dumps(value))
    if id(value) not in known:
        parts = value if isinstance(value, list) else [*value, *value.values()]
        known[id(value)] = 2 + sum(2 + json_chars(each, known) for each in parts)
    return known[id(value)]


def _changed(rng: random.Random, body: Json) -> Json:
    changed = copy.deepcopy(body)
    for _ in range(rng.randint(1, 3)):
        places = list(_places(changed))
        if not places:
            return changed
        holder, key = rng.choice(places)
        rng.choice(_CHANGES)(rng, holder, key)
    return changed


def _places(value: Json, depth: int = 0) -> list[tuple[Container, Any]]:
    """Return every item of a value with the container that holds it, the first 20 of each."""
    if depth > 20 or not isinstance(value, dict | list):
        return []
    keys = list(value)[:20] if isinstance(value, dict) else list(range(min(20, len(value))))
    found: list[tuple[Container, Any]] = [(value, key) for key in keys]
    for key in keys:
        found += _places(value[key], depth + 1)
    return found


def _replace(rng: random.Random, holder: Any, key: Any) -> None:
    holder[key] = anything(rng)


def _remove(rng: random.Random, holder: Any, key: Any) -> None:
    del holder[key]


def _extreme(rng: random.Random, holder: Any, key: Any) -> None:
    holder[key] = rng.choice((*NUMBERS, float("inf"), float("nan"), True))


def _odd_string(rng: random.Random, holder: Any, key: Any) -> None:
    holder[key] = rng.choice(STRINGS)


def _repeat(rng: random.Random, holder: Any, key: Any) -> None:
    count = rng.choice((2, 20, 1000))
    value = holder[key]
    holder[key] = (
        value * count if isinstance(value, str | list) and len(value) < 99 else [value] * 3
    )


def _wrap(rng: random.Random, holder: Any, key: Any) -> None:
    for _ in range(rng.choice((1, 2, 100, 190, 250))):
        holder[key] = [holder[key]] if rng.random() < 0.5 else {"a": holder[key]}


def _add(rng: random.Random, holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        holder[rng.choice(("unknown", "", "__class__", "model_fields", "$ref"))] = anything(rng)
    else:
        holder.append(anything(rng))


_CHANGES: tuple[Callable[[random.Random, Any, Any], None], ...] = (
    _replace, _replace, _remove, _extreme, _odd_string, _repeat, _wrap, _add,
)  # fmt: skip


def encode(rng: random.Random, body: Json) -> bytes:
    """Write JSON: escaped or not, seldom in another encoding or with invalid UTF-8."""
    shown = json.dumps(body, ensure_ascii=rng.random() < 0.7)
    data = shown.encode(errors="surrogatepass")
    if rng.random() < 0.03:
        return rng.choice((shown.encode("utf-16", "surrogatepass"), b"\xef\xbb\xbf" + data))
    return data


def damage(rng: random.Random, data: bytes) -> bytes:
    """Return bytes that are mostly invalid JSON: cut, changed, repeated, or nested without end."""
    kind = rng.randrange(6)
    at = rng.randrange(len(data) + 1)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + rng.randbytes(rng.randint(1, 8)) + data[at + 1 :]
    if kind == 2:
        return data[:-1] + b"," + data[1:]  # every key twice
    if kind == 3:
        depth = rng.choice((150, 1000, 100_000))
        return b'{"model":' + rng.choice((b"[", b'{"a":')) * depth
    if kind == 4:
        return data.replace(b":", b":" + b" " * rng.choice((1, 1000)), 3)
    return rng.choice((b"", b"null", b"[]", b'"', b"0", b"nan", rng.randbytes(5000)))
