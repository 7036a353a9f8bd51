"""API keys on the command line and in the environment, which nothing may log or inherit.

They are taken before anything else reads the arguments, and only their digests are kept.
"""

import logging
from collections.abc import MutableMapping, Sequence
from itertools import zip_longest

from specdecode_api import names
from specdecode_engine.process import ConfigurationError
from specdecode_server.api_keys import Digests, NoApiKeys, digests_of

log = logging.getLogger(__name__)

FLAG, VARIABLE = "--api-key", names.VARIABLE_API_KEY


def take_api_keys(
    arguments: Sequence[str], environment: MutableMapping[str, str]
) -> tuple[list[str], Digests]:
    """Return the arguments without `--api-key` and its keys, and the digests of all keys.

    Each `--api-key` is followed by one or more keys, or by an equals sign and a key, which may then
    begin with a hyphen. The variable has one key per line, and is removed from the environment.

    Raises:
        ConfigurationError: a key is missing, or a header cannot contain it.
    """
    kept, keys, is_key = list[str](), list[str](), False
    for word, following in zip_longest(arguments, arguments[1:], fillvalue="-"):
        flag, separator, value = word.partition("=")
        if flag.replace("_", "-") == FLAG:
            keys += [value] if separator else []
            is_key = not separator
            if is_key and following.startswith("-"):
                raise ConfigurationError(f"{FLAG}: a key is missing after it; add the key")
        elif is_key and not word.startswith("-"):
            keys.append(word)
        else:
            is_key = False
            kept.append(word)
    if keys:
        log.warning(
            "%s: other users of this machine can read the arguments of a process; %s and "
            "--api-key-file hide keys from them",
            FLAG,
            VARIABLE,
        )
    given = environment.pop(VARIABLE, None)
    lines = [] if given is None else given.splitlines() or [""]
    try:
        return kept, digests_of(FLAG, keys) | digests_of(VARIABLE, lines)
    except NoApiKeys as error:
        raise ConfigurationError(str(error)) from None
