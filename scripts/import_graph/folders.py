"""Entries, arrows, levels, circles and upward imports of each folder."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import islice
from pathlib import PurePosixPath

from scripts.import_graph.sources import Import, Sources

Graph = Mapping[str, set[str]]
"""What each node imports; every node is a key."""

Arrow = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Folder:
    """The imports between a folder's entries."""

    path: str
    entries: int
    arrows: int
    levels: int
    circles: tuple[tuple[str, ...], ...]
    upward: tuple[Import, ...]
    """The first import of each arrow that is one."""


def measure_folders(sources: Sources) -> list[Folder]:
    """Count every folder of two entries or more."""
    members = _members(sources.files)
    arrows = _arrows(sources.imports)
    return [
        _measure(path, entries, arrows[path], sources.imports)
        for path, entries in sorted(members.items())
        if len(entries) > 1
    ]


def _members(files: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """By folder and entry the modules of the entry."""
    members: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for file in files:
        for folder in PurePosixPath(file).parents:
            if entry := _entry(str(folder), file):
                members[str(folder)][entry].append(file)
    return members


def _entry(folder: str, file: str) -> str | None:
    """The entry of a folder that contains a file; None for the folder's `__init__.py`."""
    first, *rest = PurePosixPath(file).relative_to(folder).parts
    if rest:
        return f"{first}/"
    return None if first == "__init__.py" else first


def _arrows(imports: Iterable[Import]) -> dict[str, dict[Arrow, list[Import]]]:
    """By folder and pair of entries the imports that make the arrow."""
    arrows: dict[str, dict[Arrow, list[Import]]] = defaultdict(lambda: defaultdict(list))
    for one in imports:
        folder = _common_folder(one.importer, one.imported)
        above, below = _entry(folder, one.importer), _entry(folder, one.imported)
        if above and below:
            arrows[folder][above, below].append(one)
    return arrows


def _common_folder(one: str, other: str) -> str:
    parents = PurePosixPath(one).parents
    return str(next(folder for folder in parents if PurePosixPath(other).is_relative_to(folder)))


def _measure(
    path: str,
    entries: Mapping[str, Sequence[str]],
    arrows: Mapping[Arrow, Sequence[Import]],
    imports: Iterable[Import],
) -> Folder:
    graph = _graph(entries, arrows)
    components = find_components(graph)
    circles = sorted({component for component in components.values() if len(component) > 1})
    upward = [
        one
        for circle in circles
        for one in _upward({entry: entries[entry] for entry in circle}, arrows, imports)
    ]
    levels = max(find_levels(graph, components).values())
    return Folder(path, len(entries), len(arrows), levels, tuple(circles), tuple(upward))


def _upward(
    circle: Mapping[str, Sequence[str]],
    arrows: Mapping[Arrow, Sequence[Import]],
    imports: Iterable[Import],
) -> Iterator[Import]:
    modules = _graph(
        (file for files in circle.values() for file in files),
        ((one.importer, one.imported) for one in imports),
    )
    level = find_levels(modules, find_components(modules))
    height = {entry: max(level[file] for file in files) for entry, files in circle.items()}
    for (above, below), causes in arrows.items():
        if above in circle and below in circle and height[above] <= height[below]:
            down = (one for one in causes if level[one.importer] > level[one.imported])
            yield from islice(down, 1)


def _graph(nodes: Iterable[str], arrows: Iterable[Arrow]) -> Graph:
    graph: dict[str, set[str]] = {node: set() for node in nodes}
    for above, below in arrows:
        if above in graph and below in graph:
            graph[above].add(below)
    return graph


def find_components(graph: Graph) -> dict[str, tuple[str, ...]]:
    """By node the sorted nodes of its strongly connected component."""
    reached = {node: _reachable(graph, node) for node in graph}
    return {
        node: tuple(sorted({node} | {other for other in nodes if node in reached[other]}))
        for node, nodes in reached.items()
    }


def _reachable(graph: Graph, start: str) -> set[str]:
    found, waiting = set[str](), [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def find_levels(graph: Graph, components: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """By node 1 + the highest level of what its component imports, 1 if that is nothing."""
    below: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for component in components.values():
        imported = {components[other] for node in component for other in graph[node]}
        below[component] = imported - {component}
    level: dict[tuple[str, ...], int] = {}
    for component in TopologicalSorter(below).static_order():
        level[component] = 1 + max((level[other] for other in below[component]), default=0)
    return {node: level[component] for node, component in components.items()}
