"""`kubectl specdecode recommend NAME`: the recommended table and its evidence."""

from rich.console import RenderableType

from specdecode_operator.plugin import lookup
from specdecode_operator.plugin.lookup import Scope
from specdecode_operator.plugin.reach import Reader
from specdecode_operator.plugin.recommend_view import draw_recommendation


async def recommend(reader: Reader, scope: Scope) -> RenderableType:
    """The current output."""
    found = await lookup.resources(reader, scope)
    return draw_recommendation(found[0])
