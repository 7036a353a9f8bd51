"""References between the rules of a grammar: which rules are used, recursive, or lead nowhere."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from specdecode_engine.grammar.gbnf.syntax import (
    Alternation,
    GbnfError,
    GbnfNode,
    GbnfRule,
    RuleReference,
    TokenReference,
    parts_of,
    walk,
)

Rules = Mapping[str, GbnfRule]


@dataclass(frozen=True, slots=True)
class RuleOrder:
    """The rules that `root` leads to.

    Attributes:
        groups: rules that refer to each other, each group after those that it refers to.
        regular: names of the rules without recursion and tokens, which regular expressions can
            spell out.
    """

    groups: tuple[tuple[str, ...], ...]
    regular: frozenset[str]


def order_rules(rules: Rules, start: str) -> RuleOrder:
    """Find the rules that the start rule leads to, and in which order they can be looked at."""
    references = {
        name: [part.name for part in walk(rule.body) if isinstance(part, RuleReference)]
        for name, rule in rules.items()
    }
    groups = tuple(_connected(references, start))
    regular: set[str] = set()
    for group in groups:
        is_recursive = len(group) > 1 or group[0] in references[group[0]]
        if not is_recursive and is_regular(rules[group[0]].body, regular):
            regular.update(group)
    return RuleOrder(groups, frozenset(regular))


def is_regular(node: GbnfNode, regular: frozenset[str] | set[str]) -> bool:
    """Return whether a regular expression can spell out a node, given the rules that it can."""
    return not any(
        isinstance(part, TokenReference)
        or (isinstance(part, RuleReference) and part.name not in regular)
        for part in walk(node)
    )


def until_stable(bodies: Mapping[str, GbnfNode], update: Callable[[str], bool]) -> None:
    """Update every rule, and again whenever a rule that it refers to has changed.

    Args:
        bodies: right sides by name.
        update: returns whether the rule of this name has changed.
    """
    users: dict[str, dict[str, None]] = {name: {} for name in bodies}
    for name, body in bodies.items():
        for part in walk(body):
            if isinstance(part, RuleReference) and part.name in users:
                users[part.name][name] = None
    todo, waiting = deque(bodies), set(bodies)
    while todo:
        waiting.remove(name := todo.popleft())
        new = users[name].keys() - waiting if update(name) else set[str]()
        todo += [user for user in users[name] if user in new]
        waiting |= new


def check_finite(text: str, rules: Rules, order: RuleOrder) -> None:
    """Raise `GbnfError` at a rule that no finite text matches."""
    finite: set[str] = set()

    def update(name: str) -> bool:
        if name in finite or not _is_finite(rules[name].body, finite):
            return False
        finite.add(name)
        return True

    names = [name for group in order.groups for name in group]
    until_stable({name: rules[name].body for name in names}, update)
    if endless := [rules[name] for name in names if name not in finite]:
        rule = endless[0]
        reason = "every alternative leads back to it; add one that ends"
        raise GbnfError(text, rule.offset, f"no text matches the rule `{rule.name}`: {reason}")


def _is_finite(body: GbnfNode, finite: set[str]) -> bool:
    found: dict[int, bool] = {}
    for node in walk(body):
        parts = [found[id(part)] for part in parts_of(node)]
        if isinstance(node, RuleReference):
            found[id(node)] = node.name in finite
        elif isinstance(node, Alternation):
            found[id(node)] = any(parts)
        else:
            found[id(node)] = all(parts) or getattr(node, "least", 1) == 0
    return found[id(body)]


def _connected(references: Mapping[str, list[str]], start: str) -> Iterator[tuple[str, ...]]:
    """Return strongly connected groups by Tarjan's algorithm, without recursion."""
    number: dict[str, int] = {start: 0}
    lowest = {start: 0}
    path, open_names = [(start, iter(references[start]))], [start]
    done: set[str] = set()
    while path:
        name, successors = path[-1]
        for successor in successors:
            if successor not in number:
                number[successor] = lowest[successor] = len(number)
                path.append((successor, iter(references[successor])))
                open_names.append(successor)
                break
            if successor not in done:
                lowest[name] = min(lowest[name], number[successor])
        else:
            path.pop()
            if path:
                lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[name])
            if lowest[name] == number[name]:
                group = [open_names.pop()]
                while group[-1] != name:
                    group.append(open_names.pop())
                done.update(group)
                yield tuple(group)
