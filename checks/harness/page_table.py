"""A generated table in a page, between two marks."""

from collections.abc import Iterable


def marks(name: str) -> tuple[str, str]:
    """Return the lines before and after the table of a name."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def with_table(page: str, name: str, shown: str) -> str:
    """Return a page with another table between its marks.

    Raises:
        ValueError: the page lacks the marks.
    """
    first, last = marks(name)
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"the page of {name} needs the lines {first} and {last}")
    return f"{before}{first}\n{shown}\n{last}{after}"


def markdown_table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table in Markdown; a `|` in a cell is text."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    escaped = (tuple(cell.replace("|", "\\|") for cell in row) for row in rows)
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in escaped)]) + "\n"
