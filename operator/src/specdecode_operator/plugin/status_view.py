"""Draws stories: one in full, or many as a table."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from specdecode_operator.plugin.story import ConditionLine, PodLine, Story
from specdecode_operator.plugin.wording import age

GOOD, BAD, FAINT = "green", "red", "dim"


def draw_story(story: Story) -> RenderableType:
    """Everything about one resource."""
    parts: list[RenderableType] = [_title(story)]
    if story.why:
        parts.append(Text(story.why))
    parts += [Text(""), _facts(story)]
    if story.conditions:
        parts += _section("Conditions", _conditions(story.conditions))
    parts += _section("Pods", _pods(story.pods) if story.pods else Text("none", FAINT))
    parts += _section("Events", _events(story) if story.events else Text("none", FAINT))
    return Group(*parts)


def draw_list(stories: Sequence[Story], *, with_namespace: bool) -> RenderableType:
    """A line per resource."""
    first = ["NAMESPACE"] if with_namespace else []
    table = _table(*first, "NAME", "STATE", "REPLICAS", "SPECULATION", "AGE", "WHY")
    for story in stories:
        facts = dict(story.facts)
        table.add_row(
            *([story.namespace] if with_namespace else []),
            story.name,
            Text(story.headline, GOOD if story.is_ready else BAD),
            facts.get("Replicas", "").partition(" ready")[0],
            facts.get("Speculation", ""),
            age(story.age_s),
            "" if story.is_ready else Text(story.why),
        )
    return table


def _title(story: Story) -> Text:
    title = Text(f"{story.namespace}/{story.name}", "bold")
    title.append("  ")
    title.append(story.headline, GOOD if story.is_ready else BAD)
    return title.append(f"  {age(story.age_s)} old", FAINT)


def _facts(story: Story) -> Table:
    table = Table.grid(padding=(0, 2))
    for label, text in story.facts:
        table.add_row(Text(label, FAINT), Text(text))
    return table


def _conditions(lines: Sequence[ConditionLine]) -> Table:
    table = _table("TYPE", "STATUS", "REASON", "SINCE", "MESSAGE")
    for line in lines:
        style = "" if line.is_good is None else GOOD if line.is_good else BAD
        status = Text(line.status, style)
        table.add_row(line.kind, status, line.reason, age(line.age_s), Text(line.message))
    return table


def _pods(lines: Sequence[PodLine]) -> Table:
    table = _table("NAME", "STATE", "RESTARTS", "CONFIG", "NODE", "AGE", "WHY")
    for line in lines:
        state = Text(line.state, GOOD if line.is_ready else BAD)
        config = Text(line.config if line.is_current else f"{line.config} (old)")
        row = (line.node or "–", age(line.age_s), Text(line.why))
        table.add_row(line.name, state, str(line.restarts), config, *row)
    return table


def _events(story: Story) -> Table:
    table = _table("AGE", "REASON", "ABOUT", "MESSAGE")
    for line in story.events:
        reason = Text(line.reason, BAD if line.is_warning else "")
        times = f" (×{line.count})" if line.count > 1 else ""
        table.add_row(age(line.age_s), reason, line.about, Text(line.message + times))
    return table


def _section(title: str, body: RenderableType) -> list[RenderableType]:
    return [Text(""), Text(title, "bold"), Padding(body, (0, 0, 0, 2))]


def _table(*columns: str) -> Table:
    """A table as kubectl prints one; only the last column gives way when space is short."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=FAINT)
    for column in columns[:-1]:
        table.add_column(column, no_wrap=True)
    table.add_column(columns[-1], overflow="fold")
    return table
