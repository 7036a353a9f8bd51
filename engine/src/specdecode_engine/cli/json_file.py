"""JSON files that people write: each key once, a byte order mark allowed."""

import json
from pathlib import Path

from specdecode_engine.json_keys import repeated_key


def read_json(path: Path) -> object:
    """Parse a JSON file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not valid JSON, nests too deep, or an object contains a key twice.
    """
    # utf-8-sig: editors on Windows write a byte order mark.
    text = path.read_text(encoding="utf-8-sig")
    try:
        place, document = repeated_key(text), json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not valid JSON: {error}") from None
    if place:
        raise ValueError(f"contains {place} twice")
    return document
