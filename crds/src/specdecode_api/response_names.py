"""Names of stored responses: 128 random bits, and a keyed hash by which routers find the engine.

Each engine process draws a key, which routers read with its state. A name is 32 hexadecimal digits
and the first 16 of HMAC-SHA256(key, the 32): without the key, it reveals nothing of its engine.
The id of a response is `resp_NAME`, those of its items are
`PREFIX_NAME_NUMBER`, with an i before the number for items of the input.
"""

import hashlib
import hmac
import re
import secrets
from typing import Final

KEY_BYTES: Final = 32
RANDOM_DIGITS: Final = 32
TAG_DIGITS: Final = 16
_RESPONSE: Final = re.compile(r"resp_([0-9a-f]{48})")
_ITEM: Final = re.compile(r"(?!resp_)[a-z]{1,8}_([0-9a-f]{48})_i?[0-9]{1,9}")


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def new_name(key: bytes) -> str:
    """Return a name that no other response has, for the engine with this key."""
    return named_for(key, secrets.token_hex(RANDOM_DIGITS // 2))


def named_for(key: bytes, random: str) -> str:
    """Return the name that begins with `random`, 32 hexadecimal digits."""
    tag = hmac.digest(key, random.encode(), hashlib.sha256).hex()[:TAG_DIGITS]
    return f"{random}{tag}"


def has_issued(key: bytes, name: str) -> bool:
    """Whether a name is one of the engine with this key."""
    return hmac.compare_digest(named_for(key, name[:RANDOM_DIGITS]).encode(), name.encode())


def name_in_response(response_id: str) -> str | None:
    """Return the name in the id of a response; None if it has none."""
    found = _RESPONSE.fullmatch(response_id)
    return found[1] if found else None


def name_in_item(item_id: str) -> str | None:
    """Return the name of an item's response, from the id of the item; None if it has none."""
    found = _ITEM.fullmatch(item_id)
    return found[1] if found else None
