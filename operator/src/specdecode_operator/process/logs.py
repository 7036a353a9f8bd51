"""Log lines: one event per line, with fields, as JSON or text."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(level: str, form: str) -> None:
    """Send all logs to standard error.

    Raises:
        ValueError: when level or form is unknown.
    """
    if form not in ("json", "text"):
        raise ValueError(f"log format {form!r} is unknown; use json or text")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    if logging.getLogger().level > logging.DEBUG:
        for chatty in ("kopf.objects", "kopf.activities", "aiohttp.access"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger("asyncio").addFilter(_is_relevant)


def _is_relevant(record: logging.LogRecord) -> bool:
    """Drop the error of Kopf's watches that are cancelled during an event; it is harmless."""
    return "closing of asynchronous generator <async_generator object infinite_watch" not in (
        record.getMessage()
    )


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record with its fields."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TextLines(logging.Formatter):
    """Text for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record with its fields."""
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        line = f"{record.levelname:<7} {record.getMessage()} {fields}".rstrip()
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(record).items()
        if name not in _PLAIN and not name.startswith(("_", "k8s_", "settings"))
    }
