"""The page as HTML: templates of this package, in which every text is escaped."""

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from specdecode_operator.plugin.report.page import ReportPage

LONG_TABLE = 12
"""Rows from which on a table is folded on screens."""


def render_page(page: ReportPage) -> str:
    """The page, without scripts and without references to other files."""
    return _template().render(page=page, long_table=LONG_TABLE)


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("specdecode_operator.plugin.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")
