"""Where a checkpoint of a command line lies, and what the resource is called."""

import re
from typing import Final

from specdecode_api import names
from specdecode_api.model_uri import HUB_URI_PATTERN
from specdecode_operator.convert.secrets import shown

_DEFAULT_NAME: Final = "model"


def checkpoint_uri(model: str, revision: str | None, given: str | None, flag: str) -> str:
    """The URI of a model.

    Args:
        given: the value of `flag`, by which a user names it.

    Raises:
        ValueError: with the remedy.
    """
    if given is not None:
        return given
    name = shown([model])
    if re.match(r"[./~]|[a-z0-9+]+://", model) or model.count("/") > 1:
        raise ValueError(
            f"{name} is not a repository of the Hugging Face Hub: name where pods find it with "
            f"{flag}, such as pvc://CLAIM/FOLDER"
        )
    uri = f"hf://{model}" + (f"@{revision}" if revision else "")
    if re.fullmatch(HUB_URI_PATTERN, uri) is None:
        at = f" at revision {shown([revision])}" if revision else ""
        raise ValueError(f"{name}{at} is not ORG/NAME of the Hugging Face Hub: use {flag} URI")
    return uri


def resource_name(text: str) -> str:
    """A valid name from that of a model: lower case letters, digits and `-`."""
    last = text.rstrip("/").rpartition("/")[2].lower()
    name = re.sub("[^a-z0-9]+", "-", last).strip("-")
    if name and not name[0].isalpha():
        name = f"m-{name}"
    return name[: names.MAX_NAME_LENGTH].rstrip("-") or _DEFAULT_NAME
