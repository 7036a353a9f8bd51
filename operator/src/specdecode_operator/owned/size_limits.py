"""Limits the sizes of `emptyDir` volumes in engine pods.

Not part of a configuration, and no reason to replace pods: those that an operator of a release
before made keep their volumes until their configuration changes.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from specdecode_api import names
from specdecode_operator.objects.kinds import DEPLOYMENT, Manifest
from specdecode_operator.objects.rollout import template_annotations
from specdecode_operator.owned.build import restamped

SIZE_LIMITS: Final[Mapping[str, str]] = MappingProxyType(
    {"tmp": "16Gi", "shm": "1Gi", "model-links": "16Mi"}
)
"""By volume. /tmp holds the caches of Triton, FlashInfer and downloads. The size of a model cache
is not known: `download.cacheSizeLimit` limits it. Fields of spec.template take precedence."""


def size_limited(child: Manifest, live: Manifest | None) -> Manifest:
    """An owned object whose volumes have limits, unless its pods would be replaced for them.

    Args:
        live: the object as it is; None if there is none.
    """
    if child["kind"] != DEPLOYMENT.kind or _is_kept(child, live):
        return child
    template = child["spec"]["template"]
    volumes = [_limited(each) for each in template["spec"]["volumes"]]
    if volumes == template["spec"]["volumes"]:
        return child
    pod = {**template["spec"], "volumes": volumes}
    return restamped({**child, "spec": {**child["spec"], "template": {**template, "spec": pod}}})


def _is_kept(child: Manifest, live: Manifest | None) -> bool:
    """Whether pods run the same configuration with volumes that have no limits."""
    if live is None or _config_hash(live) != _config_hash(child):
        return False
    volumes = live["spec"]["template"]["spec"].get("volumes") or ()
    return any(_limited(each) != each for each in volumes)


def _config_hash(deployment: Manifest) -> str | None:
    return template_annotations(deployment).get(names.ANNOTATION_CONFIG_HASH)


def _limited(volume: Manifest) -> Manifest:
    limit = SIZE_LIMITS.get(volume["name"])
    found = volume.get("emptyDir")
    if limit is None or found is None or "sizeLimit" in found:
        return volume
    return {**volume, "emptyDir": {**found, "sizeLimit": limit}}
