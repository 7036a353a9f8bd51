"""Reads fields from sources with `ast`: request models, types of objects, and create calls."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from checks.peer_flags.declarations import UnreadableSource, strings_of

ROOT_BASES = {"BaseModel", "TypedDict"}
OPTIONS = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
"""Parameters of create calls that are no fields of the body."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """A class whose annotated fields are those of a body or an object, or one with a call.

    Attributes:
        method: the method whose parameters are the fields, without the options of a request.
    """

    file: str
    name: str
    method: str | None = None


def fields_of(declaration: Declaration, sources: Mapping[str, str]) -> set[str]:
    """Return the names of the fields.

    Args:
        sources: text of modules by path.

    Raises:
        UnreadableSource: the class, the method or a base is in no module that was read.
    """
    if declaration.file not in sources:
        raise UnreadableSource(f"there is no module {declaration.file}")
    classes = _classes(sources[declaration.file])
    node = classes.get(declaration.name)
    if node is None:
        raise UnreadableSource(f"{declaration.file} has no class {declaration.name}")
    if declaration.method is not None:
        return set(_parameters(node, declaration)) - OPTIONS
    elsewhere = {name: found for text in sources.values() for name, found in _classes(text).items()}
    return set(_names(node, elsewhere | {**classes}))


Type = ast.ClassDef | ast.Dict
"""A class, or the keys of `X = TypedDict("X", {…})`."""


@cache
def _classes(text: str) -> Mapping[str, Type]:
    found = dict[str, Type]()
    for node in ast.parse(text).body:
        match node:
            case ast.ClassDef():
                found[node.name] = node
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Name(id="TypedDict"), args=[_, ast.Dict() as keys]),
            ):
                found[name] = keys
    return found


def _names(node: Type, types: Mapping[str, Type]) -> Iterator[str]:
    """Yield the fields of a type and its bases that clients send."""
    if isinstance(node, ast.Dict):
        yield from strings_of([key for key in node.keys if key is not None])
        return
    for base in node.bases:
        name = ast.unparse(base)
        if name in types:
            yield from _names(types[name], types)
        elif name not in ROOT_BASES:
            raise UnreadableSource(f"base {name} of {node.name} is in no module that was read")
    for each in node.body:
        match each:
            case ast.AnnAssign(target=ast.Name(id=name)) if _is_sent(name, each):
                yield _alias(each.value) or name


def _is_sent(name: str, field: ast.AnnAssign) -> bool:
    """Whether a field is neither private, nor one of the class, nor set by the model itself."""
    is_set = field.value is not None and "exclude=True" in ast.unparse(field.value)
    is_of_class = ast.unparse(field.annotation).startswith("ClassVar")
    return not (name.startswith("_") or is_of_class or is_set)


def _alias(value: ast.expr | None) -> str | None:
    """Return the name that a field has in a body, if it has another one there."""
    for each in value.keywords if isinstance(value, ast.Call) else ():
        if each.arg == "alias" and isinstance(each.value, ast.Constant):
            return str(each.value.value)
    return None


def _parameters(node: Type, declaration: Declaration) -> Iterator[str]:
    """Yield the parameters of every overload of a call."""
    body = node.body if isinstance(node, ast.ClassDef) else []
    found = [
        each
        for each in body
        if isinstance(each, ast.FunctionDef) and each.name == declaration.method
    ]
    if not found:
        raise UnreadableSource(f"class {declaration.name} has no method {declaration.method}")
    for each in found:
        yield from (argument.arg for argument in (*each.args.args, *each.args.kwonlyargs))


Declarations = Mapping[str, Mapping[str, tuple[Declaration, ...]]]
"""By path, then by object: "" is the body itself."""


def read_fields(declarations: Declarations, sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the names of the fields by path, those of objects as `stream_options.include_usage`.

    Raises:
        UnreadableSource: as `fields_of`.
    """
    return {
        path: {
            f"{each}.{name}" if each else name
            for each, found in objects.items()
            for declaration in found
            for name in fields_of(declaration, sources)
        }
        for path, objects in declarations.items()
    }
