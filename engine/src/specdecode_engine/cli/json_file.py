"""JSON files that people write: each key once, a byte order mark allowed."""

import json
from collections import Counter
from pathlib import Path


def read_json(path: Path) -> object:
    """Parse a JSON file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not valid JSON, nests too deep, or an object contains a key twice.
    """
    # utf-8-sig: editors on Windows write a byte order mark.
    text = path.read_text(encoding="utf-8-sig")
    try:
        return json.loads(text, object_pairs_hook=_each_key_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not valid JSON: {error}") from None


def _each_key_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    counts = Counter(key for key, _ in pairs)
    twice = [key for key, count in counts.items() if count > 1]
    if twice:
        raise ValueError(f"an object contains the key {twice[0]!r} twice")
    return dict(pairs)
