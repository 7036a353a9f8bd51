"""The CRDs: schema, names, printer columns and subresources."""

import json
from collections.abc import Mapping
from typing import Any, Final

from specdecode_api import names
from specdecode_api.base import CHANGE_KEY, ResourceRecord
from specdecode_api.structural import Schema, structural
from specdecode_api.v1alpha1 import SpecDecodeDeployment, SpecDecodeTrial


def custom_resource_definition() -> dict[str, Any]:
    """Return the CRD of SpecDecodeDeployment."""
    return _definition(
        names.KIND, names.PLURAL, names.SINGULAR, names.SHORT_NAME, version=_version()
    )


def trial_definition() -> dict[str, Any]:
    """Return the CRD of SpecDecodeTrial."""
    return _definition(
        names.KIND_TRIAL,
        names.PLURAL_TRIAL,
        names.SINGULAR_TRIAL,
        names.SHORT_NAME_TRIAL,
        version=_trial_version(),
    )


def _definition(
    kind: str, plural: str, singular: str, short_name: str, version: dict[str, Any]
) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "names": {
                "categories": [names.CATEGORY],
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "shortNames": [short_name],
                "singular": singular,
            },
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def resource_schema() -> Schema:
    """Return the structural schema of SpecDecodeDeployment, with the change flag of each field."""
    return _schema(SpecDecodeDeployment, names.KIND)


def trial_schema() -> Schema:
    """Return the structural schema of SpecDecodeTrial."""
    return _schema(SpecDecodeTrial, names.KIND_TRIAL)


def _schema(resource: type[ResourceRecord], kind: str) -> Schema:
    schema = structural(resource.model_json_schema(by_alias=True))
    properties = schema["properties"]
    # The server defines these three and accepts hardly any schema for them.
    properties["apiVersion"] = {"type": "string", "description": "Version of this schema."}
    properties["kind"] = {"type": "string", "description": f"Always {kind}."}
    properties["metadata"] = {"type": "object"}
    schema["required"] = ["spec"]
    # A default in status would be a statement that no controller made.
    properties["status"] = _without("default", properties["status"])
    return schema


STORED_DEFAULTS: Final = frozenset({"replicas"})
"""Fields of a spec whose default the API server stores: the scale subresource reads this one."""


def _as_written(schema: Schema) -> Schema:
    """Leave the defaults of the spec to the operator, so that objects stay as users wrote them.

    A stored default could not be distinguished from a value of the user, and a later release could
    not change it. The description of a field contains its default.
    """
    spec = schema["properties"]["spec"]
    kept = {
        name: field if name in STORED_DEFAULTS else _described(field)
        for name, field in spec["properties"].items()
    }
    properties = {**schema["properties"], "spec": {**spec, "properties": kept}}
    return {**schema, "properties": properties}


MAP_TYPE_KEY: Final = "x-kubernetes-map-type"


def _with_whole_sections(schema: Schema) -> Schema:
    """Have server-side apply own and replace each section of the spec as a whole.

    In an object that it merges field by field, it turns an applied `{}` into null once the last
    field of the manager goes (structured-merge-diff), and the API server then refuses null.
    """
    spec = schema["properties"]["spec"]
    sections = {
        name: {**field, MAP_TYPE_KEY: "atomic"} if field.get("type") == "object" else field
        for name, field in spec["properties"].items()
    }
    properties = {**schema["properties"], "spec": {**spec, "properties": sections}}
    return {**schema, "properties": properties}


def _described(schema: Any) -> Any:
    """Copy a schema, with the default of each value in its description instead."""
    if not isinstance(schema, Mapping):
        return schema
    copied = {name: value for name, value in schema.items() if name != "default"}
    default = schema.get("default")
    # The default of an object consists of its fields' defaults; empty maps and lists need none.
    if "properties" not in schema and default not in (None, {}, []):
        shown = default if isinstance(default, str) else json.dumps(default)
        copied["description"] = f"{schema['description']} Default: {shown}."
    for name in ("items", "additionalProperties"):
        if name in copied:
            copied[name] = _described(copied[name])
    if "properties" in copied:
        children = copied["properties"].items()
        copied["properties"] = {name: _described(child) for name, child in children}
    return copied


def _served(schema: Schema) -> Schema:
    served: Schema = _without(CHANGE_KEY, _with_whole_sections(schema))
    return served


def _version() -> dict[str, Any]:
    return {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _served(_as_written(resource_schema()))},
        "subresources": {
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
            "status": {},
        },
        "additionalPrinterColumns": [
            _column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            _column("Replicas", ".status.readyReplicas", kind="integer"),
            _column("Algorithm", ".status.speculation.algorithm"),
            _column("Accept", ".status.measured.acceptLength"),
            _column("Tokens/s", ".status.measured.tokensPerSecond"),
            _column("Trial", ".status.activeTrial"),
            _column("Age", ".metadata.creationTimestamp", kind="date"),
            _wide_column("Desired", ".spec.replicas", kind="integer"),
            _wide_column("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
            _wide_column("Model", ".spec.model.uri"),
            _wide_column("Draft", ".spec.speculation.draft.uri"),
            _wide_column("Policy", ".status.speculation.policy"),
            _wide_column("Config", ".status.configHash"),
            _wide_column("Mode", ".spec.rollout.mode"),
            _wide_column("Gain", ".status.recommendation.expectedGain"),
            _wide_column("Verdict", ".status.lastTrial.verdict"),
            _wide_column("URL", ".status.address.url"),
        ],
    }


def _trial_version() -> dict[str, Any]:
    return {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _served(trial_schema())},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            _column("Deployment", ".spec.deployment"),
            _column("Strategy", ".status.strategy"),
            _column("Phase", ".status.phase"),
            _column("Verdict", ".status.verdict"),
            _column("Gain", ".status.interval.gain"),
            _column("Age", ".metadata.creationTimestamp", kind="date"),
            _wide_column("Origin", ".spec.origin"),
            _wide_column("On-Success", ".spec.onSuccess"),
            _wide_column("Low", ".status.interval.low"),
            _wide_column("High", ".status.interval.high"),
            _wide_column("Reason", ".status.reason"),
        ],
    }


_COLUMN_DESCRIPTIONS: Final = {
    "Accept": "Tokens per decode step of a request, as the operator measures it.",
    "Age": "Time since the creation.",
    "Algorithm": "Source of draft tokens.",
    "Config": "Hash of the wanted configuration.",
    "Deployment": "SpecDecodeDeployment of the trial.",
    "Desired": "Engines that the spec wants.",
    "Draft": "Checkpoint of the draft.",
    "Gain": "Relative gain in decode time per token.",
    "High": "Upper end of the gain's interval.",
    "Low": "Lower end of the gain's interval.",
    "Mode": "What the operator does with recommendations; empty is Recommend.",
    "Model": "Checkpoint of the target.",
    "On-Success": "What follows a trial that passes.",
    "Origin": "Who asked for the trial.",
    "Phase": "Progress of the trial.",
    "Policy": "Policy that chooses draft steps.",
    "Ready": "Whether the endpoint serves as the spec wants, or an earlier revision does.",
    "Reason": "Reason of the state, in one word.",
    "Replicas": "Engines that serve.",
    "Strategy": "How the candidate is compared.",
    "Tokens/s": "Output tokens per second of all engines, as the operator measures it.",
    "Trial": "Trial that runs.",
    "URL": "URL of the endpoint inside the cluster.",
    "Verdict": "Result of the latest trial.",
}


def _column(name: str, path: str, kind: str = "string") -> dict[str, Any]:
    description = _COLUMN_DESCRIPTIONS[name]
    return {"name": name, "type": kind, "jsonPath": path, "description": description}


def _wide_column(name: str, path: str, kind: str = "string") -> dict[str, Any]:
    """Describe a column that only `kubectl get -o wide` shows."""
    return {**_column(name, path, kind), "priority": 1}


def _without(key: str, schema: Any) -> Any:
    """Copy a schema, leaving `key` out wherever a schema has it as a keyword."""
    if isinstance(schema, list):
        return [_without(key, item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        name: {child: _without(key, below) for child, below in value.items()}
        if name == "properties"
        else _without(key, value)
        for name, value in schema.items()
        if name != key
    }
