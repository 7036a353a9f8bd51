"""Gives engines without routers too the token of routers, for changes of table and draft.

Not part of a configuration, and no reason to replace pods: those that an operator of a release
before made have no token until their configuration changes.
"""

from collections.abc import Iterable

from specdecode_api import names
from specdecode_api.boot import EngineBoot
from specdecode_operator.objects.kinds import CONFIG_MAP, DEPLOYMENT, Manifest
from specdecode_operator.objects.rollout import template_annotations
from specdecode_operator.owned import router_token
from specdecode_operator.owned.build import restamped
from specdecode_operator.owned.config_map import boot_text


def with_token(
    children: Iterable[Manifest], live: Iterable[Manifest], uid: str, *, is_wanted: bool
) -> list[Manifest]:
    """Owned objects whose engines require the token, unless pods would be replaced for it.

    Args:
        live: the owned objects as they are.
        uid: of the resource. Operators of the release before send it instead of the token.
        is_wanted: whether engines of a configuration without pods get the token.
    """
    mounted = dict[str | None, bool]()
    for each in live:
        if each["kind"] == DEPLOYMENT.kind:
            of = _configuration(each)
            mounted[of] = mounted.get(of, True) and _has_volume(each["spec"]["template"]["spec"])
    return [
        _with_token(each, uid) if of and mounted.get(of, is_wanted) else each
        for each, of in ((each, _configuration(each)) for each in children)
    ]


def _configuration(child: Manifest) -> str | None:
    """Config hash of the pods for which an object is; None if they read no token."""
    if child["kind"] == DEPLOYMENT.kind:
        labels = child["spec"]["template"]["metadata"].get("labels") or {}
        if names.LABEL_RUNTIME in labels:
            return None
        return template_annotations(child).get(names.ANNOTATION_CONFIG_HASH)
    if child["kind"] != CONFIG_MAP.kind:
        return None
    annotations = child["metadata"].get("annotations") or {}
    return str(annotations[names.ANNOTATION_CONFIG_HASH])


def _with_token(child: Manifest, uid: str) -> Manifest:
    if child["kind"] == CONFIG_MAP.kind:
        return _with_path(child, uid)
    template = child["spec"]["template"]
    if _has_volume(template["spec"]):
        return child
    pod = _mounted(template["spec"])
    return restamped({**child, "spec": {**child["spec"], "template": {**template, "spec": pod}}})


def _with_path(config_map: Manifest, uid: str) -> Manifest:
    """The boot file names token and owner: with both, the engine refuses changes without either."""
    boot = EngineBoot.model_validate_json(config_map["data"][names.BOOT_FILE_NAME])
    added = {"router_token_path": names.ROUTER_TOKEN_FOLDER, "owner": uid or None}
    boot = boot.model_copy(update={"server": boot.server.model_copy(update=added)})
    text = boot_text(boot)
    if text == config_map["data"][names.BOOT_FILE_NAME]:
        return config_map
    return restamped({**config_map, "data": config_map["data"] | {names.BOOT_FILE_NAME: text}})


def _mounted(pod: Manifest) -> Manifest:
    containers = [
        {**each, "volumeMounts": [*each["volumeMounts"], router_token.mount()]}
        if each["name"] == names.ENGINE_CONTAINER
        else each
        for each in pod["containers"]
    ]
    return {**pod, "containers": containers, "volumes": [*pod["volumes"], router_token.volume()]}


def _has_volume(pod: Manifest) -> bool:
    return any(each["name"] == router_token.VOLUME for each in pod.get("volumes") or ())
