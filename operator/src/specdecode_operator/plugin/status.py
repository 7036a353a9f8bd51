"""`kubectl specdecode status`: diagnosis of one resource, or a line per resource."""

from datetime import UTC, datetime

from rich.console import RenderableType
from rich.text import Text

from specdecode_api import names
from specdecode_operator.plugin import lookup
from specdecode_operator.plugin.diagnosis import Diagnosis, diagnose
from specdecode_operator.plugin.lookup import Scope
from specdecode_operator.plugin.reach import Reader
from specdecode_operator.plugin.status_view import draw_diagnosis, draw_list


async def status(reader: Reader, scope: Scope) -> RenderableType:
    """The current output."""
    found = await lookup.resources(reader, scope)
    now = datetime.now(UTC)
    if scope.name is not None and len(found) == 1:
        pods = await lookup.pods(reader, found[0])
        return draw_diagnosis(
            diagnose(found[0], pods, await lookup.events(reader, found[0], pods), now)
        )
    diagnoses: list[Diagnosis] = [diagnose(resource, (), (), now) for resource in found]
    if not diagnoses:
        where = (
            "" if scope.is_everywhere else f" in namespace {scope.namespace or reader.namespace}"
        )
        return Text(f"no {names.KIND}{where}")
    return draw_list(diagnoses, with_namespace=scope.is_everywhere)
