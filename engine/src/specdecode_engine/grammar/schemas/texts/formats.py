"""`format`: what the library enforces, what a pattern expresses, and what is an annotation."""

from collections.abc import Mapping

from specdecode_engine.grammar.schemas.parts import Document, Part, constrain
from specdecode_engine.grammar.schemas.texts.regexes import REGEX

_ENFORCED_FORMATS = frozenset(
    {
        "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
    }
)  # fmt: skip
_REFUSED_FORMATS = frozenset({"idn-email", "idn-hostname", "uri-template"})
"""Those of draft 2020-12 that no pattern here expresses."""
_OF_PYDANTIC = frozenset(
    {
        "base64", "base64url", "color", "fraction", "ipv4interface", "ipv4network",
        "ipv6interface", "ipv6network", "ipvanyaddress", "ipvanyinterface", "ipvanynetwork",
        "json-string", "multi-host-uri", "name-email",
        "uuid1", "uuid3", "uuid4", "uuid5", "uuid6", "uuid7", "uuid8", "zoneinfo",
    }
)  # fmt: skip
"""Those that pydantic enforces. Its schemas have no `$schema`; for one of JSON Schema they have no
meaning."""
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"
_ASCII = r"[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2}"
_OTHER = r"[\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef]"


def _references(name: str) -> tuple[str, str]:
    """Return patterns of references with and without a scheme, by the pattern of a character."""
    in_path = rf"{name}|@"
    segments = rf"(?:/(?:{in_path}|:)*)*"
    authority = rf"//(?:(?:{name}|:)*@)?(?:{name})*(?::[0-9]*)?{segments}"
    absolute = rf"/(?:(?:{in_path}|:)+{segments})?"
    text = rf"(?:{in_path}|[:/?])*"
    rest = rf"(?:\?{text})?(?:#{text})?"
    scheme = rf"[A-Za-z][A-Za-z0-9+.-]*:(?:{authority}|{absolute}|(?:{in_path}|:)+{segments})?"
    relative = rf"{authority}|{absolute}|(?:{in_path})+{segments}"
    return rf"^{scheme}{rest}$", rf"^(?:{scheme}|{relative})?{rest}$"


_, URI_REFERENCE = _references(_ASCII)
IRI, IRI_REFERENCE = _references(rf"{_ASCII}|{_OTHER}")
FORMAT_PATTERNS: Mapping[str, str] = {
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": f"^(?:0|[1-9][0-9]*)(?:#|{_POINTER})$",
    "uri-reference": URI_REFERENCE,
    "iri": IRI,
    "iri-reference": IRI_REFERENCE,
    "regex": REGEX,
}
"""RFC 6901, the draft on relative JSON pointers, RFC 3986 and 3987 without IP addresses in brackets
and without characters above U+FFFF, and `regexes`."""
KNOWN_FORMATS = _ENFORCED_FORMATS | FORMAT_PATTERNS.keys()


def rewrite_format(part: Part, document: Document) -> None:
    """Replace a format by its pattern; drop one without meaning, or a refused one with a pattern.

    A format that JSON Schema does not define, such as `int32` of OpenAPI, is an annotation.
    """
    name = part.get("format")
    if not isinstance(name, str) or name in _ENFORCED_FORMATS:
        return
    refused = _REFUSED_FORMATS if "$schema" in document.root else _REFUSED_FORMATS | _OF_PYDANTIC
    if "pattern" in part or name not in refused:
        del part["format"]
    if name in FORMAT_PATTERNS and "pattern" in part:
        constrain(part, {"pattern": FORMAT_PATTERNS[name]})
    elif name in FORMAT_PATTERNS:
        part["pattern"] = FORMAT_PATTERNS[name]
