"""`format`: what the library enforces, what a pattern expresses, and what is an annotation."""

from collections.abc import Mapping

from specdecode_engine.grammar.schemas.parts import Document, Part

_ENFORCED_FORMATS = frozenset(
    {
        "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
    }
)  # fmt: skip
_REFUSED_FORMATS = frozenset(
    {
        "idn-email", "idn-hostname", "iri", "iri-reference", "regex", "uri-template",
        "base64", "base64url", "color", "fraction", "ipv4interface", "ipv4network",
        "ipv6interface", "ipv6network", "ipvanyaddress", "ipvanyinterface", "ipvanynetwork",
        "json-string", "multi-host-uri", "name-email",
        "uuid1", "uuid3", "uuid4", "uuid5", "uuid6", "uuid7", "uuid8", "zoneinfo",
    }
)  # fmt: skip
"""Those of draft 2020-12 that no pattern here expresses, and those that pydantic enforces."""
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"
_NAME = r"[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2}"
_PATH = rf"{_NAME}|@"
_SEGMENTS = rf"(?:/(?:{_PATH}|:)*)*"
_AUTHORITY = rf"//(?:(?:{_NAME}|:)*@)?(?:{_NAME})*(?::[0-9]*)?{_SEGMENTS}"
_ABSOLUTE = rf"/(?:(?:{_PATH}|:)+{_SEGMENTS})?"
_REST = rf"(?:{_PATH}|[:/?])*"
FORMAT_PATTERNS: Mapping[str, str] = {
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": f"^(?:0|[1-9][0-9]*)(?:#|{_POINTER})$",
    "uri-reference": (
        rf"^(?:[A-Za-z][A-Za-z0-9+.-]*:(?:{_AUTHORITY}|{_ABSOLUTE}|(?:{_PATH}|:)+{_SEGMENTS})?"
        rf"|{_AUTHORITY}|{_ABSOLUTE}|(?:{_PATH})+{_SEGMENTS})?(?:\?{_REST})?(?:#{_REST})?$"
    ),
}
"""RFC 6901, the draft on relative JSON pointers, and RFC 3986 without IP addresses in brackets."""
KNOWN_FORMATS = _ENFORCED_FORMATS | FORMAT_PATTERNS.keys()


def rewrite_format(part: Part, document: Document) -> None:
    """Replace a format by its pattern; drop one without meaning, or with a pattern next to it.

    A format that JSON Schema does not define, such as `int32` of OpenAPI, is an annotation.
    """
    del document
    name = part.get("format")
    if not isinstance(name, str) or name in _ENFORCED_FORMATS:
        return
    if "pattern" in part or name not in _REFUSED_FORMATS:
        del part["format"]
    if name in FORMAT_PATTERNS:
        part.setdefault("pattern", FORMAT_PATTERNS[name])
