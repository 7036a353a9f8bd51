"""The manifest of a draft, without values that their fields refuse."""

from typing import Final

from pydantic import ValidationError

from specdecode_api import names
from specdecode_api.v1alpha1 import SpecDecodeDeployment
from specdecode_api.validation_errors import dotted, refusals
from specdecode_operator import owned
from specdecode_operator.convert.errors import ConvertError
from specdecode_operator.convert.result import ResourceDraft
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.resource import ResourceError, parse

_NEVER_DROPPED: Final = (
    *("model.uri", "speculation", "parallelism", "resources"),
    *("engine.runtime", "engine.image", "engine.extraArgs"),
)
"""Fields without which the resource would serve something else: an invalid one is an error."""
_FIRST: Final = ("model", "speculation", "engine", "parallelism", "serving")


def valid_manifest(draft: ResourceDraft, name: str) -> Manifest:
    """Return a manifest that the API server and the operator accept.

    Raises:
        ConvertError: what is refused came from no flag that may be dropped.
    """
    for _ in range(len(draft.origins) + 1):
        manifest = _manifest(draft, name)
        try:
            SpecDecodeDeployment.from_resource(manifest)
        except ValidationError as error:
            _drop_refused(draft, error)
            continue
        _check_buildable(manifest)
        return manifest
    raise AssertionError("every attempt drops a field or raises")


def _manifest(draft: ResourceDraft, name: str) -> Manifest:
    fields = sorted(draft.spec, key=lambda each: _FIRST.index(each) if each in _FIRST else 99)
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name},
        "spec": {field: draft.spec[field] for field in fields},
    }


def _drop_refused(draft: ResourceDraft, error: ValidationError) -> None:
    errors = list[str]()
    for place, message in refusals(error, SpecDecodeDeployment):
        path = dotted(place).removeprefix("spec.").partition("[")[0]
        origin = _origin(draft, path)
        if origin is None or origin.startswith(_NEVER_DROPPED):
            errors.append(f"{dotted(place)}: {message}")
            continue
        draft.drop(draft.origins[origin], f"{path}: {message}")
        draft.remove(origin)
    if errors:
        raise ConvertError(*errors)


def _origin(draft: ResourceDraft, path: str) -> str | None:
    """The field that a flag has set at a path or around it."""
    around = (each for each in draft.origins if f"{path}.".startswith(f"{each}."))
    return max((each for each in around if draft.get(each) is not None), key=len, default=None)


def _check_buildable(manifest: Manifest) -> None:
    """Refuse what only the operator's translation finds, such as values of `engine.config`."""
    try:
        owned.build(parse(manifest), "image")
    except ResourceError as error:
        raise ConvertError(*error.sentences) from None
