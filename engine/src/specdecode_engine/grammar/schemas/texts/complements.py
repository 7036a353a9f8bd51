"""The pattern of all texts that a pattern of one class of characters does not match.

The library's `\\s`, `\\d` and `\\w` contain those of ECMA-262, but for U+FEFF. So they may be
excluded, with that character, and not be what is left. It reads `&&`, `--` and `~~` in a class as
operations on sets, which ECMA-262 does not have.
"""

import re

_MEMBER = r"\\[^\w\s]|\\[sdwtnr]|[^\\\[\]^]"
_CLASS = rf"\[\^?(?:{_MEMBER})+\]"
_SINGLE = r"\\[^\w\s]|[\w ,:;@/#=!<>&'\"~`%-]"
_WHOLE = re.compile(rf"\^({_CLASS})([+*])\$", re.ASCII)
_ANYWHERE = re.compile(rf"(\()?({_CLASS}|{_SINGLE})\+?(?(1)\))", re.ASCII)
_SHORTHAND = re.compile(r"\\([^\w]|[sdw])", re.ASCII)
_OPERATIONS = ("&&", "--", "~~")
_ANY = r"[\s\S]*"


def complement_of(pattern: str) -> str | None:
    """Return the pattern of the other texts; None if it has no form that is known to be equal."""
    if whole := _WHOLE.fullmatch(pattern):
        other = _other(whole[1])
        if other is None:
            return None
        contains = f"{_ANY}{other}{_ANY}"
        return f"^{contains}$" if whole[2] == "*" else f"^(?:{contains})?$"
    if anywhere := _ANYWHERE.fullmatch(pattern):
        other = _other(anywhere[2])
        return None if other is None else f"^{other}*$"
    return None


def _other(single: str) -> str | None:
    """Return the class of the characters that a class or a character is not."""
    if not single.startswith("["):
        return f"[^{single}]"
    members = single[1:-1]
    if any(each in members for each in _OPERATIONS):
        return None
    shorthands = {found[1] for found in _SHORTHAND.finditer(members)} & {"s", "d", "w"}
    if not members.startswith("^"):
        return f"[^{members}\ufeff]" if "s" in shorthands else f"[^{members}]"
    return None if shorthands else f"[{members[1:]}]"
