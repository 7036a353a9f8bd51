"""Reads the small JSON files of a checkpoint that describe its texts."""

import json
from pathlib import Path
from typing import Any


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the entries of a JSON object that are not null; none where there is no object."""
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    entries = content.items() if isinstance(content, dict) else ()
    return {name: value for name, value in entries if value is not None}
