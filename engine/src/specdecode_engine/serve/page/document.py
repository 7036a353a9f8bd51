"""The page as one document without data, and the headers that let it do nothing else."""

import base64
import hashlib
from functools import cache
from importlib.resources import files
from types import MappingProxyType

_FOLDER = files(__package__)


@cache
def document() -> bytes:
    """Return the page: one file, with its style and its script inside."""
    page = _read("page.html").replace("/*STYLE*/", _read("page.css"))
    return page.replace("/*SCRIPT*/", _read("page.js")).encode()


@cache
def page_headers() -> MappingProxyType[str, str]:
    """Return the headers of the page.

    It loads nothing and connects to its own origin alone. Style and script are those of the file:
    any other would have another hash. An image may only be a part of the page.
    """
    policy = (
        "default-src 'none'",
        f"script-src {_source('page.js')}",
        f"style-src {_source('page.css')}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
    return MappingProxyType(
        {
            "content-security-policy": "; ".join(policy),
            "content-type": "text/html; charset=utf-8",
            "cache-control": "no-store",
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
        }
    )


def _read(name: str) -> str:
    return (_FOLDER / name).read_text("utf-8")


def _source(name: str) -> str:
    digest = hashlib.sha256(_read(name).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
