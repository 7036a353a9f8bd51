"""`kubectl specdecode trial …`, `rollback` and `adopt`: commands that create or change trials."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import yaml
from rich.console import RenderableType
from rich.text import Text

from specdecode_api import names
from specdecode_operator.objects.kinds import RESOURCE, TRIAL, Manifest
from specdecode_operator.objects.merge_patch import merge_patch
from specdecode_operator.plugin import in_force, lookup
from specdecode_operator.plugin.errors import PluginError
from specdecode_operator.plugin.lookup import Scope
from specdecode_operator.plugin.reach import Reader
from specdecode_operator.plugin.trials_view import draw_trials
from specdecode_operator.trial.record.revisions import Revision
from specdecode_operator.trial.record.stored import has_ended

TRIAL_CRD = f"{TRIAL.plural}.{TRIAL.group}"


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """What `trial start` sets, apart from the candidate; absent options keep their defaults."""

    strategy: str | None = None
    on_success: str | None = None
    budget: str | None = None
    guard: Mapping[str, str] = field(default_factory=dict)


def read_candidate(path: str, text: str) -> dict[str, Any]:
    """Read a merge patch from YAML or JSON.

    Raises:
        PluginError: the text does not contain an object.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise PluginError(f"{path} is neither YAML nor JSON: {error}") from None
    if not isinstance(document, dict) or not document:
        raise PluginError(
            f"{path} is {json.dumps(document, default=str)[:80]}, not a merge patch; write an "
            "object such as {pageSize: 32}"
        )
    return document


async def start(
    reader: Reader, scope: Scope, candidate: Mapping[str, Any], options: TrialOptions
) -> RenderableType:
    """Create a trial of `candidate`, after the API server has accepted the patched resource."""
    (resource,) = await lookup.resources(reader, scope)
    running = in_force.in_force(resource, await revisions(reader, resource))
    notes = await _dry_run(reader, resource, merge_patch(running.spec, candidate))
    fields = {
        "strategy": options.strategy,
        "onSuccess": options.on_success,
        "explorationBudget": options.budget,
    }
    spec: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    if options.guard:
        spec["guard"] = dict(options.guard)
    return await _create(reader, resource, {"candidate": dict(candidate), **spec}, notes)


async def rollback(reader: Reader, scope: Scope, to: str | None) -> RenderableType:
    """Put an earlier revision in force by a trial that is promoted at once."""
    (resource,) = await lookup.resources(reader, scope)
    found = await revisions(reader, resource)
    running = in_force.in_force(resource, found)
    target = in_force.chosen_revision(found, running, to)
    candidate = in_force.rollback(running, target)
    notes = await _dry_run(reader, resource, merge_patch(running.spec, candidate))
    notes.append(f"revision {target.number} ({target.name}) is put in force without a comparison")
    return await _create(reader, resource, {"candidate": candidate, "promote": True}, notes)


async def adopt(reader: Reader, scope: Scope, *, with_image: bool) -> str:
    """Return the merge patch, as YAML, that makes the spec equal to what is in force."""
    (resource,) = await lookup.resources(reader, scope)
    running = in_force.in_force(resource, await revisions(reader, resource))
    patch = in_force.adoption(resource, running, with_image=with_image)
    name, namespace = resource["metadata"]["name"], resource["metadata"]["namespace"]
    if not patch:
        return f"# the spec of {name} is what is in force; there is nothing to adopt\n"
    head = {
        "apiVersion": RESOURCE.api_version,
        "kind": RESOURCE.kind,
        "metadata": {"name": name, "namespace": namespace},
    }
    how = (
        f"# kubectl patch {names.SHORT_NAME} {name} -n {namespace} --type merge --patch-file FILE\n"
    )
    return how + yaml.safe_dump(head | patch, sort_keys=False)


async def change(
    reader: Reader, scope: Scope, spec: Mapping[str, Any], outcome: str
) -> RenderableType:
    """Set fields of a trial's spec; a deployment's name stands for its only trial that runs."""
    assert scope.name is not None
    trial = await _one(reader, scope, scope.name)
    path = TRIAL.path(trial["metadata"]["namespace"], trial["metadata"]["name"])
    body = {"spec": dict(spec)}
    await reader.send("PATCH", path, TRIAL_CRD, body, "application/merge-patch+json")
    return Text(f"{_object(trial)} {outcome}")


async def listed(reader: Reader, scope: Scope) -> RenderableType:
    """The trials of a namespace, or of one deployment, the newest first."""
    found = await _trials(reader, scope)
    if scope.name is not None:
        found = [each for each in found if each["spec"]["deployment"] == scope.name]
    if not found:
        where = (
            "" if scope.is_everywhere else f" in namespace {scope.namespace or reader.namespace}"
        )
        of = f" of {scope.name}" if scope.name else ""
        return Text(f"no {names.KIND_TRIAL}{of}{where}")
    found.sort(key=lambda each: str(each["metadata"]["creationTimestamp"]), reverse=True)
    return draw_trials(found, datetime.now(UTC), with_namespace=scope.is_everywhere)


async def revisions(reader: Reader, resource: Manifest) -> list[Revision]:
    """The accepted configurations of a deployment, the newest first."""
    return in_force.read_revisions(await lookup.revisions(reader, resource))


async def _create(
    reader: Reader, resource: Manifest, spec: Mapping[str, Any], notes: list[str]
) -> RenderableType:
    metadata = resource["metadata"]
    reference = {
        "apiVersion": RESOURCE.api_version,
        "kind": RESOURCE.kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    trial = {
        "apiVersion": TRIAL.api_version,
        "kind": TRIAL.kind,
        "metadata": {
            "generateName": f"{metadata['name']}-",
            "labels": {names.LABEL_DEPLOYMENT: metadata["name"]},
            "ownerReferences": [reference],
        },
        "spec": {"deployment": metadata["name"], **spec},
    }
    path = TRIAL.path(metadata["namespace"])
    created = await reader.send("POST", path, TRIAL_CRD, trial, fieldValidation="Strict")
    return Text("\n".join([*notes, f"{_object(created)} created"]))


async def _dry_run(reader: Reader, resource: Manifest, spec: Mapping[str, Any]) -> list[str]:
    """Have the API server validate the patched resource; returns notes for the user.

    A dry run needs the permission to write, which a user who may start trials need not have.
    """
    metadata = resource["metadata"]
    path = RESOURCE.path(metadata["namespace"], metadata["name"])
    what = f"{RESOURCE.plural}.{RESOURCE.group}"
    try:
        # Not a patch: the error of an invalid patch contains the whole resource.
        body = {**resource, "spec": dict(spec)}
        await reader.send("PUT", path, what, body, dryRun="All", fieldValidation="Strict")
    except PluginError as error:
        if error.code == HTTPStatus.FORBIDDEN:
            return [
                f"not checked by a dry run, because {reader.user} may not update {what}; the "
                "operator checks the candidate when the trial begins"
            ]
        if error.code in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
            raise PluginError(f"the candidate is invalid: {error}", error.code) from None
        raise
    return []


async def _trials(reader: Reader, scope: Scope) -> list[Manifest]:
    namespace = None if scope.is_everywhere else scope.namespace or reader.namespace
    return await reader.items(TRIAL, namespace)


async def _one(reader: Reader, scope: Scope, name: str) -> Manifest:
    found = await _trials(reader, scope)
    for each in found:
        if each["metadata"]["name"] == name:
            return each
    running = [each for each in found if each["spec"]["deployment"] == name and not has_ended(each)]
    if len(running) == 1:
        return running[0]
    candidates = ", ".join(sorted(str(each["metadata"]["name"]) for each in running or found))
    raise PluginError(
        f"{name} is neither a {names.KIND_TRIAL} nor a deployment with exactly one trial that "
        f"runs; name one of: {candidates or 'none'}"
    )


def _object(trial: Manifest) -> str:
    return f"{names.SINGULAR_TRIAL}.{names.GROUP}/{trial['metadata']['name']}"
