"""Model URIs: a folder in a PVC, a repository on the hub, an OCI image, a folder on the node."""

import re
from dataclasses import dataclass
from typing import Final

from specdecode_api.rules import Rule

_NAME: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
PVC_PATTERN: Final = f"{_NAME}([.]{_NAME})*"
PATH_PATTERN: Final = "(/[A-Za-z0-9._+=@-]+)+"

# Narrower than the hub's own rule: names that contain "-." and the like, which are not used.
_HUB_NAME: Final = "[A-Za-z0-9_]+([.-][A-Za-z0-9_]+)*"
COMMIT_PATTERN: Final = "[0-9a-f]{40}"
REVISION_PATTERN: Final = "[A-Za-z0-9_]([A-Za-z0-9._/-]*[A-Za-z0-9_])?"

_HOST: Final = "[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?"
_REPOSITORY: Final = "(/[a-z0-9]+([._-]+[a-z0-9]+)*)+"
_TAG: Final = "(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?"
_DIGEST: Final = "(@sha256:[0-9a-f]{64})?"

PVC_URI_PATTERN: Final = f"^pvc://{PVC_PATTERN}({PATH_PATTERN})?$"
HUB_URI_PATTERN: Final = f"^hf://{_HUB_NAME}/{_HUB_NAME}(@{REVISION_PATTERN})?$"
IMAGE_URI_PATTERN: Final = f"^oci://{_HOST}{_REPOSITORY}{_TAG}{_DIGEST}$"
NODE_URI_PATTERN: Final = f"^file://{PATH_PATTERN}$"
DOTS_PATTERN: Final = "/[.][.]?(/|$)"

SCHEMES: Final = ("pvc://", "hf://", "oci://", "file://")
DEFAULT_REVISION: Final = "main"


@dataclass(frozen=True, slots=True)
class PvcLocation:
    """A folder in a PersistentVolumeClaim; an empty folder is the volume's root."""

    pvc: str
    folder: str


@dataclass(frozen=True, slots=True)
class HubLocation:
    """A repository of the Hugging Face hub, at a branch, a tag or a commit."""

    repository: str
    revision: str = DEFAULT_REVISION

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, which cannot change."""
        return re.fullmatch(COMMIT_PATTERN, self.revision) is not None


@dataclass(frozen=True, slots=True)
class ImageLocation:
    """The root folder of an OCI image or artifact."""

    reference: str


@dataclass(frozen=True, slots=True)
class NodeLocation:
    """An absolute folder of the node, the same on every node."""

    folder: str


Location = PvcLocation | HubLocation | ImageLocation | NodeLocation


def parse_uri(uri: str) -> Location:
    """Parse a URI that complies with `URI_RULES`."""
    scheme, _, rest = uri.partition("://")
    match scheme:
        case "file":
            return NodeLocation(rest)
        case "oci":
            return ImageLocation(rest)
        case "hf":
            repository, _, revision = rest.partition("@")
            return HubLocation(repository, revision or DEFAULT_REVISION)
        case _:
            pvc, _, folder = rest.partition("/")
            return PvcLocation(pvc, folder)


def _spelled(scheme: str, pattern: str, message: str) -> Rule[str]:
    """Require URIs of one scheme to match a pattern."""
    return Rule(
        cel=f"!self.startsWith('{scheme}') || self.matches('{pattern}')",
        # fullmatch: `$` would let a newline at the end pass, in CEL it does not.
        holds=lambda uri: not uri.startswith(scheme) or re.fullmatch(pattern, uri) is not None,
        message=message,
    )


URI_RULES: Final[tuple[Rule[str], ...]] = (
    Rule(
        cel=" || ".join(f"self.startsWith('{scheme}')" for scheme in SCHEMES),
        holds=lambda uri: uri.startswith(SCHEMES),
        message="a checkpoint is read from a volume claim, the Hugging Face hub, an image or the "
        "node: write pvc://CLAIM/FOLDER, hf://ORG/NAME@REVISION, oci://REGISTRY/REPOSITORY:TAG "
        "or file:///FOLDER",
    ),
    _spelled(
        "pvc://",
        PVC_URI_PATTERN,
        "write pvc://CLAIM/FOLDER: CLAIM is the name of a PersistentVolumeClaim (lower "
        "case letters, digits, '-' and '.'), FOLDER has letters, digits and ._+=@- "
        "and no '/' at its end",
    ),
    _spelled(
        "hf://",
        HUB_URI_PATTERN,
        "write hf://ORG/NAME or hf://ORG/NAME@REVISION as the hub spells them; REVISION is a "
        "branch, a tag or a commit of 40 digits",
    ),
    _spelled(
        "oci://",
        IMAGE_URI_PATTERN,
        "write oci://REGISTRY/REPOSITORY:TAG or oci://REGISTRY/REPOSITORY@sha256:DIGEST; the "
        "registry must be named, the repository is in lower case",
    ),
    _spelled(
        "file://",
        NODE_URI_PATTERN,
        "write file:///FOLDER with three slashes: an absolute folder of the node, with "
        "letters, digits and ._+=@- and no '/' at its end",
    ),
    Rule(
        cel=f"!self.matches('{DOTS_PATTERN}')",
        holds=lambda uri: re.search(DOTS_PATTERN, uri) is None,
        message="a folder must not contain '.' or '..' as a part: write the path it stands for",
    ),
)
