"""Lark in llguidance's dialect: literals, attributes that are refused, and places of errors."""

import json
import re

_SKIPPED = r"(?>(?:\s|#[^\n]*|//[^\n]*)*)"
_GBNF_RULE = re.compile(_SKIPPED + r"[\w-]+[ \t]*::=")
_LARK_STATEMENT = re.compile(_SKIPPED + r"(?:%[a-z]|[!?]*\w[\w-]*[ \t]*(?:::_|[:.\[{](?!:=)))")

# Strings, regular expressions, special tokens and comments contain no attributes.
_ATTRIBUTE = re.compile(
    r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\])+/|<[^<>\s]+>|(?:#|//)[^\n]*'
    r"|\b(?P<name>max_tokens|stop|temperature)[ \t]*="
)
_REMEDIES = {
    "max_tokens": "bound the repetition in its pattern, as in `/[0-9]{1,10}/`, end it with "
    "`suffix=`, or set max_tokens of the request",
    "stop": "end it with `suffix=`, or set stop of the request",
    "temperature": "set temperature of the request",
}
_PLACE = re.compile(r"(?:at )?(\d+)\((\d+)\): ")
_DIRECTIVE = re.compile(r"%(?:json|regex|llguidance)\s*")
_NAMED = re.compile(r'^unknown special token: "(<[^"]+>)"|^rule "([^"]+)"|(@[\w-]+)$|(\d+)$')


def lark_literal(text: str) -> str:
    """Return a literal that matches `text`."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")


def is_gbnf(text: str) -> bool | None:
    """Return whether the first rule is GBNF's (`name ::=`) or Lark's; None if it is neither."""
    if _GBNF_RULE.match(text):
        return True
    return False if _LARK_STATEMENT.match(text) else None


def describe_place(text: str, offset: int) -> str:
    """Return the line and the column of an offset, both from 1; lines end with CR, LF or both."""
    before = text[:offset].replace("\r\n", "\n").replace("\r", "\n")
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


def first_statement(text: str) -> int:
    """Return the offset after the comments and the white space that a grammar begins with."""
    found = re.match(_SKIPPED, text)
    return found.end() if found else 0


def unavailable_attribute(text: str) -> str | None:
    """Return what is wrong with the attributes of a grammar's rules; None if nothing is.

    A lexeme that counts tokens, or hides what ended it, cannot take back a rejected draft.
    """
    for found in _ATTRIBUTE.finditer(text):
        if (name := found["name"]) is not None:
            place = describe_place(text, found.start())
            return f"{place}: `{name}=` of a rule is not available; {_REMEDIES[name]}"
    return None


def explain_lark(text: str, message: str) -> str:
    """Put the place that the library's message about `text` names in our words; it counts bytes."""
    found = _PLACE.match(message)
    if found is None:
        return _located(text, message)
    line, column = int(found[1]), int(found[2])
    before = "".join(text.split("\n")[line - 1 : line]).encode(errors="surrogatepass")[: column - 1]
    shown = len(before.decode(errors="ignore")) + 1 if len(before) == column - 1 else column
    return f"line {line}, column {shown}: {message[found.end() :]}"


def explain_gbnf(text: str, message: str) -> str:
    """Write the library's message about the translation of `text` as one about `text`."""
    return _located(text, _PLACE.sub("", message, count=1).partition("\n")[0])


def _located(text: str, message: str) -> str:
    """Find the place of what a message without one is about; none if it is about the whole."""
    if message == "no start rule found":
        place = describe_place(text, first_statement(text))
        return f"{place}: the grammar has no rule `start`, with which it has to begin"
    if message.startswith("failed to parse"):
        offsets = [found.start() for found in _DIRECTIVE.finditer(text) if not _has_json(found)]
    else:
        named = next(iter(_NAMED.finditer(message)), None)
        offsets = [text.find(named[named.lastindex or 0])] if named else []
    is_known = bool(offsets) and offsets[0] >= 0
    return f"{describe_place(text, offsets[0])}: {message}" if is_known else message


def _has_json(directive: "re.Match[str]") -> bool:
    try:
        json.JSONDecoder().raw_decode(directive.string, directive.end())
    except (ValueError, RecursionError):
        return False
    return True
