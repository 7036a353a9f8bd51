"""Runs the checks of a client program and prints one line of JSON for each."""

import json
import sys
from collections.abc import Callable, Sequence

SHOWN_CHARS = 300

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Oslo"]}, "days": {"enum": [1, 2, 3]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
SCHEMA = TOOL["function"]["parameters"]
MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]


def assert_arguments(arguments: object) -> None:
    """The arguments of a call, as text or decoded, follow the tool's schema."""
    found = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert set(found) == {"city", "days"}, found
    assert found["city"] in ("Paris", "Oslo"), found
    assert found["days"] in (1, 2, 3), found


def run(checks: Sequence[Callable[[], None]]) -> None:
    """Run every check, also after one that failed; the exit status is 1 if any did."""
    has_failed = False
    for check in checks:
        error = ""
        try:
            check()
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"[:SHOWN_CHARS]
            has_failed = True
        print(json.dumps({"check": check.__name__.replace("_", " "), "error": error}), flush=True)
    sys.exit(1 if has_failed else 0)
