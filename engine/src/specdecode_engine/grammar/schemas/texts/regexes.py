"""A pattern of regular expressions: those that are valid in every dialect of JSON Schema's readers.

It admits a part of ECMA-262: groups nested up to three times and lookaheads; no backreferences,
named groups, lookbehinds or properties of Unicode, and ranges of classes within digits or letters
alone.
"""

from string import ascii_lowercase, ascii_uppercase, digits

_NESTED = 3
_ALWAYS = r"[dDwWsStnrfv.*+?^$(){}\[\]|/\\]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}"
_ESCAPE = rf"\\(?:{_ALWAYS})"
_IN_CLASS = rf"\\(?:-|{_ALWAYS})"
_ANCHOR = r"[\^$|]|\\[bB]"
"""What may not be repeated; an alternative may be empty."""


def _repeated(most_digits: int) -> str:
    """Return a pattern of quantifiers whose limits are in order."""
    number, more = f"[0-9]{{1,{most_digits}}}", f"[1-9][0-9]{{1,{most_digits - 1}}}"
    limits = rf"{number},?|0,{number}|1,(?:[1-9]|{more})|2,(?:[2-9]|{more})|[3-9],{more}"
    return rf"(?:(?:[*+?]|\{{(?:{limits})\}})\??)?"


def _ranges() -> str:
    """Return a pattern of ranges whose ends are in order."""
    of_digits, *of_letters = (
        "|".join(f"{first}-[{first}-{of[-1]}]" for first in of)
        for of in (digits, ascii_lowercase, ascii_uppercase)
    )
    return "|".join((of_digits, *of_letters))


def _regex() -> str:
    of_class = rf"\[\^?-?(?:{_ranges()}|[^\\\]\[\-&~^\x00-\x1f]|{_IN_CLASS})+-?\]"
    single = rf"(?:[^\\^$.*+?()\[\]{{}}|\x00-\x1f]|{_ESCAPE}|{of_class}|\.){_repeated(3)}"
    flat = rf"(?:{single}|{_ANCHOR})*"
    ahead = rf"\(\?[=!]{flat}\)"
    found = flat
    for _ in range(_NESTED):
        group = rf"\((?:\?:)?{found}\){_repeated(2)}"
        found = rf"(?:{single}|{_ANCHOR}|{ahead}|{group})*"
    return f"^{found}$"


REGEX = _regex()
