"""What a command line declares: names of a flag, and how many values follow it."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from specdecode_api.peer_flags import Takes


class UnreadableSource(Exception):
    """A peer declares flags in a way that this reader does not know."""


@dataclass(frozen=True, slots=True)
class DeclaredFlag:
    """A flag of a peer: its names as declared, the first long one first."""

    names: tuple[str, ...]
    takes: Takes

    @property
    def flag(self) -> str:
        return next(name for name in self.names if name.startswith("--"))

    @property
    def aliases(self) -> frozenset[str]:
        return frozenset(self.names) - {self.flag}


def calls_of(tree: ast.AST, method: str) -> Iterator[ast.Call]:
    """Yield the calls of a method, or of a function, by its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
            if name == method:
                yield node


def strings_of(nodes: list[ast.expr]) -> tuple[str, ...]:
    """Return literal strings; anything else is left out."""
    return tuple(
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def find_class(tree: ast.Module, name: str) -> ast.ClassDef:
    """Return a class of a module.

    Raises:
        UnreadableSource: the module has none of this name.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise UnreadableSource(f"there is no class {name}")


def find_function(tree: ast.AST, name: str) -> ast.FunctionDef:
    """Return a function or method.

    Raises:
        UnreadableSource: there is none of this name.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise UnreadableSource(f"there is no function {name}")


def takes_of_action(action: str, nargs: str | None) -> Takes:
    """Return what follows a flag, from the arguments of add_argument.

    Raises:
        UnreadableSource: for an action that this reader does not know.
    """
    if action.endswith("BooleanOptionalAction"):
        return Takes.BOOLEAN
    if action in {"store_true", "store_false"} or action.endswith("StoreTrueAction"):
        return Takes.SWITCH
    if action in {"", "store", "append"} or action.endswith("Action"):
        return takes_of_nargs(nargs)
    raise UnreadableSource(f"action {action} is unknown")


def takes_of_nargs(nargs: str | None) -> Takes:
    """Return what follows a flag with these nargs.

    Raises:
        UnreadableSource: for nargs that this reader does not know.
    """
    known = {None: Takes.VALUE, "?": Takes.OPTIONAL, "+": Takes.VALUES, "*": Takes.VALUES}
    if nargs not in known:
        raise UnreadableSource(f"nargs {nargs} is unknown")
    return known[nargs]
