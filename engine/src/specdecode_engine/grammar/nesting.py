"""How deep a grammar nests once its references are followed.

llguidance compiles a schema or a rule by recursion: nested parts and references that were not
compiled yet each take up to 7 KiB of stack, and a stack overflow ends the process. Therefore the
depth is bounded before the library reads a grammar, and compile threads have a larger stack.
"""

import json
import re
import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import unquote

MAX_DEPTH = 2000
Result = TypeVar("Result")

STACK_BYTES = 128 * 2**20  # 64 KiB a level: nine times what was measured with llguidance 1.9


def start_threads(stack_bytes: int, count: int = 1, name: str = "") -> ThreadPoolExecutor:
    """Return a pool whose threads have started; a stack of 0 bytes is the default one.

    The stack size of new threads is a setting of the process.
    """
    all_started = threading.Barrier(count)
    before = threading.stack_size(stack_bytes)
    try:
        pool = ThreadPoolExecutor(count, name)
        for _ in range(count):
            pool.submit(all_started.wait)
    finally:
        threading.stack_size(before)
    return pool


def run_with_deep_stack(function: Callable[[], Result]) -> Result:
    """Return what the function returns in a thread of its own, with `STACK_BYTES` of stack."""
    with start_threads(STACK_BYTES) as pool:
        return pool.submit(function).result()


_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_IDENTIFIERS = ("$id", "id", "$anchor", "$dynamicAnchor")

_LARK = re.compile(
    r"""(?P<skip>(?:\#|//)[^\n]*|[ \t\r]+|"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\])+/|<[^<>\s]+>|::)"""
    r"""|(?P<json>%json|%regex|%llguidance)|(?P<name>[!?]*_*[A-Za-z][\w-]*)|(?P<newline>\n)"""
    r"""|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<colon>:)"""
)

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Node(Generic[Key]):
    """A part of a grammar: the levels that it adds itself, and the parts that it leads to."""

    levels: int = 1
    successors: set[Key] = field(default_factory=set)


def _depth(graph: Mapping[Key, _Node[Key]]) -> int:
    """Return the levels of the longest path that passes no node twice, or more.

    Exact where there is no cycle. All nodes on cycles and between cycles count as one path.
    Successors that the graph does not contain are skipped.
    """
    successors = {name: node.successors & graph.keys() for name, node in graph.items()}
    inner, after = _peel(graph, successors)
    predecessors: dict[Key, set[Key]] = {name: set() for name in inner}
    for name in inner:
        for successor in successors[name] & inner:
            predecessors[successor].add(name)
    core, before = _peel(graph, predecessors)
    return before + sum(graph[name].levels for name in core) + after


def _peel(graph: Mapping[Key, _Node[Key]], edges: Mapping[Key, set[Key]]) -> tuple[set[Key], int]:
    """Take off nodes that no cycle can be reached from along `edges`.

    Returns:
        The nodes that are left, and the levels of the longest path among those taken off.
    """
    left = {name: len(targets) for name, targets in edges.items()}
    sources: dict[Key, list[Key]] = {name: [] for name in edges}
    for name, targets in edges.items():
        for target in targets:
            sources[target].append(name)
    ready = [name for name, count in left.items() if not count]
    depths: dict[Key, int] = {}
    while ready:
        name = ready.pop()
        below = max((depths[target] for target in edges[name]), default=0)
        depths[name] = below + graph[name].levels
        for source in sources[name]:
            left[source] -= 1
            if not left[source]:
                ready.append(source)
    return set(edges) - set(depths), max(depths.values(), default=0)


def schema_depth(schema: Mapping[str, object]) -> int:
    """Return an upper bound of the levels that compiling a JSON Schema recurses to.

    The graph has a node per object and list, by `id`. A reference that is not a plain JSON pointer
    leads to a node that leads to every node. So does every reference of a schema with nested bases
    or anchors.
    """
    graph: dict[int, _Node[int]] = {}
    references: list[tuple[int, str]] = []
    has_bases = False
    todo: list[Mapping[str, object] | list[object]] = [schema]
    while todo:
        part = todo.pop()
        values = part if isinstance(part, list) else part.values()
        children = [child for child in values if isinstance(child, dict | list)]
        graph[id(part)] = _Node(1, set(map(id, children)))
        todo += children
        if not isinstance(part, list):
            found = [part[key] for key in _REFERENCES if isinstance(part.get(key), str)]
            references += [(id(part), str(target)) for target in found]
            is_base = any(isinstance(part.get(key), str) for key in _IDENTIFIERS)
            has_bases |= is_base and part is not schema
    anywhere = 0  # no object's id
    graph[anywhere] = _Node(0, set(graph))
    for place, target in references:
        is_pointer = not has_bases and (target == "#" or target.startswith("#/"))
        graph[place].successors.add(id(_resolve(schema, target[1:])) if is_pointer else anywhere)
    return _depth(graph)


def _resolve(schema: object, pointer: str) -> object:
    """Follow a JSON pointer; None where there is nothing, which the library refuses."""
    part = schema
    for step in unquote(pointer).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, Mapping):
            part = part.get(key)
        elif isinstance(part, list) and key.isdecimal() and int(key) < len(part):
            part = part[int(key)]
        else:
            return None
    return part


def lark_depth(text: str) -> int:
    """Return an upper bound of the levels that compiling a Lark grammar recurses to.

    The graph has a node per rule, by name, that leads to every name in its body. A rule has a level
    of its own, and one for each open bracket; a schema in it adds its own. Rules of the same name
    in nested grammars are one.
    """
    rules: dict[str, _Node[str]] = {"": _Node()}
    rule = rules[""]
    names: list[str] = []  # of this line, which begins a rule if a colon comes
    depth = line_depth = at = 0
    while at < len(text):
        token = _LARK.match(text, at)
        kind = token.lastgroup if token else None
        at = token.end() if token else at + 1
        if token and kind == "name":
            names.append(token[0].lstrip("!?"))
        elif kind == "newline":
            rule.successors.update(names)
            names, line_depth = [], depth
        elif kind == "colon" and names and depth == line_depth:
            rule, names = rules.setdefault(names[0], _Node()), []
        elif kind == "open":
            depth += 1
            rule.levels = max(rule.levels, 1 + depth)
        elif kind == "close":
            depth -= 1
        elif kind == "json":
            schema, at = _read_json(text, at)
            rule.levels = max(rule.levels, 1 + depth + schema_depth(schema))
    rule.successors.update(names)
    return _depth(rules)


def _read_json(text: str, start: int) -> tuple[dict[str, object], int]:
    """Return the JSON object at `start` and its end; an empty one if there is none.

    The library applies the same rules or stricter ones, and refuses invalid JSON.
    """
    start += len(text[start:]) - len(text[start:].lstrip(" \t\r\n"))
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return {}, start
    return (value if isinstance(value, dict) else {}), end
