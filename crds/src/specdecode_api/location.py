"""Where a checkpoint lies: in a volume claim of the namespace, or in a folder of the node."""

import re
from dataclasses import dataclass
from typing import Final

from specdecode_api.rules import Rule

_NAME: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
CLAIM_PATTERN: Final = f"{_NAME}([.]{_NAME})*"
PATH_PATTERN: Final = "(/[A-Za-z0-9._+=@-]+)+"

CLAIM_URI_PATTERN: Final = f"^pvc://{CLAIM_PATTERN}({PATH_PATTERN})?$"
NODE_URI_PATTERN: Final = f"^file://{PATH_PATTERN}$"
DOTS_PATTERN: Final = "/[.][.]?(/|$)"


@dataclass(frozen=True, slots=True)
class ClaimLocation:
    """A folder in a PersistentVolumeClaim; an empty folder is the volume's root."""

    claim: str
    folder: str


@dataclass(frozen=True, slots=True)
class NodeLocation:
    """An absolute folder of the node, the same on every node."""

    folder: str


def parse_uri(uri: str) -> ClaimLocation | NodeLocation:
    """Read a URI that `URI_RULES` accepted."""
    if uri.startswith("file://"):
        return NodeLocation(uri.removeprefix("file://"))
    claim, _, folder = uri.removeprefix("pvc://").partition("/")
    return ClaimLocation(claim, folder)


def _matches(pattern: str, text: str) -> bool:
    # fullmatch: `$` would let a newline at the end pass, in CEL it does not.
    return re.fullmatch(pattern, text) is not None


URI_RULES: Final[tuple[Rule[str], ...]] = (
    Rule(
        cel="self.startsWith('pvc://') || self.startsWith('file://')",
        holds=lambda uri: uri.startswith(("pvc://", "file://")),
        message="a checkpoint is read from a volume claim or from the node: "
        "write pvc://CLAIM/FOLDER or file:///FOLDER",
    ),
    Rule(
        cel=f"!self.startsWith('pvc://') || self.matches('{CLAIM_URI_PATTERN}')",
        holds=lambda uri: not uri.startswith("pvc://") or _matches(CLAIM_URI_PATTERN, uri),
        message="write pvc://CLAIM/FOLDER: CLAIM is the name of a PersistentVolumeClaim (lower "
        "case letters, digits, '-' and '.'), FOLDER has letters, digits and ._+=@- "
        "and no '/' at its end",
    ),
    Rule(
        cel=f"!self.startsWith('file://') || self.matches('{NODE_URI_PATTERN}')",
        holds=lambda uri: not uri.startswith("file://") or _matches(NODE_URI_PATTERN, uri),
        message="write file:///FOLDER with three slashes: an absolute folder of the node, with "
        "letters, digits and ._+=@- and no '/' at its end",
    ),
    Rule(
        cel=f"!self.matches('{DOTS_PATTERN}')",
        holds=lambda uri: re.search(DOTS_PATTERN, uri) is None,
        message="a folder must not contain '.' or '..' as a part: write the path it stands for",
    ),
)
