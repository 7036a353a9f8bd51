"""Reads a trial from the cluster in the form of `kubectl get -o json`."""

import json

from specdecode_api import names
from specdecode_operator.objects.kinds import TRIAL
from specdecode_operator.plugin.errors import PluginError
from specdecode_operator.plugin.reach import connect


async def saved_trial(kubeconfig: str | None, namespace: str | None, name: str) -> str:
    """A SpecDecodeTrial as JSON.

    Raises:
        PluginError: the trial does not exist or cannot be read.
    """
    async with connect(kubeconfig, None) as reader:
        where = namespace or reader.namespace
        found = await reader.items(TRIAL, where, fieldSelector=f"metadata.name={name}")
    if not found:
        raise PluginError(
            f"no {names.KIND_TRIAL} {name} in namespace {where}; `kubectl get "
            f"{names.SHORT_NAME_TRIAL} -A` lists all"
        )
    return json.dumps(found[0])
