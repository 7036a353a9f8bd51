"""The flags of `vllm serve`, which derives them from the fields of its configuration classes.

`EngineArgs.add_cli_args` registers `group.add_argument("--flag", **kwargs["field"])`, where kwargs
are those of one class; `FrontendArgs` registers every field of its own.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from checks.peer_flags.declarations import (
    DeclaredFlag,
    UnreadableSource,
    calls_of,
    find_class,
    find_function,
    strings_of,
    takes_of_action,
)
from specdecode_api.peer_flags import Takes

ENGINE = "vllm/engine/arg_utils.py"
FRONTEND = "vllm/entrypoints/common/cli_args.py"
CONFIGS = "vllm/config/"
FILES = (ENGINE, FRONTEND, CONFIGS)


@dataclass(frozen=True)
class ConfigClasses:
    """Classes with fields, and names of types, over all modules of the configuration."""

    classes: Mapping[str, ast.ClassDef]
    type_names: Mapping[str, ast.expr]

    def fields(self, name: str) -> dict[str, ast.expr]:
        """Annotations of a class and its bases by field.

        Raises:
            UnreadableSource: the class is in no module that was read.
        """
        if name not in self.classes:
            raise UnreadableSource(f"there is no class {name}")
        found = dict[str, ast.expr]()
        node = self.classes[name]
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in self.classes:
                found |= self.fields(base.id)
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                found[each.target.id] = each.annotation
        return found

    def takes(self, annotation: ast.expr) -> Takes:
        """Decide as vLLM's get_kwargs does."""
        parts = set(self._parts(annotation))
        if parts & self.classes.keys():
            return Takes.VALUE
        if parts == {"bool", "str", "None"}:
            return Takes.OPTIONAL
        if "bool" in parts:
            return Takes.BOOLEAN
        if "Literal" not in parts and parts & {"list", "tuple", "set"}:
            return Takes.VALUES
        return Takes.VALUE

    def _parts(self, node: ast.expr) -> Iterator[str]:
        """Yield the types of a union, with names of types resolved."""
        if isinstance(node, ast.BinOp):
            yield from self._parts(node.left)
            yield from self._parts(node.right)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from self._parts(ast.parse(node.value, mode="eval").body)
        elif isinstance(node, ast.Subscript):
            yield from self._parts_of_subscript(node)
        else:
            name = ast.unparse(node)
            if name in self.type_names:
                yield from self._parts(self.type_names[name])
            else:
                yield name

    def _parts_of_subscript(self, node: ast.Subscript) -> Iterator[str]:
        name = ast.unparse(node.value)
        within = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if name in {"SkipValidation", "Annotated"}:
            yield from self._parts(within[0])
        elif name in {"Optional", "Union"}:
            for each in within:
                yield from self._parts(each)
            yield from ["None"] if name == "Optional" else []
        else:
            yield name


def read_flags(sources: Mapping[str, str]) -> list[DeclaredFlag]:
    """Return every flag of `vllm serve`.

    Args:
        sources: text of the modules in FILES by path.

    Raises:
        UnreadableSource: for a declaration of a kind that is not known.
    """
    trees = {name: ast.parse(text) for name, text in sources.items()}
    configs = _config_classes(trees)
    engine = find_class(trees[ENGINE], "EngineArgs")
    asynchronous = find_class(trees[ENGINE], "AsyncEngineArgs")
    return [
        *_registered(find_function(engine, "add_cli_args"), configs),
        *_registered(find_function(asynchronous, "add_cli_args"), configs),
        *_registered(find_function(trees[FRONTEND], "make_arg_parser"), configs),
        *_frontend(trees[FRONTEND], configs),
    ]


def _config_classes(trees: Mapping[str, ast.Module]) -> ConfigClasses:
    classes, type_names = dict[str, ast.ClassDef](), dict[str, ast.expr]()
    for tree in trees.values():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.decorator_list:
                classes[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                type_names[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
                assert node.value is not None
                type_names[ast.unparse(node.target)] = node.value
    types = ("Literal", "Union", "Optional", "list", "dict")
    return ConfigClasses(
        classes,
        {
            name: value
            for name, value in type_names.items()
            if isinstance(value, ast.BinOp)
            or (isinstance(value, ast.Subscript) and ast.unparse(value.value) in types)
        },
    )


def _registered(function: ast.FunctionDef, configs: ConfigClasses) -> Iterator[DeclaredFlag]:
    """Yield the flags of calls of add_argument in a function."""
    kwargs_of = _kwargs_variables(function)
    for call in calls_of(function, "add_argument"):
        names = strings_of(call.args)
        if not names or not names[0].startswith("-"):
            continue  # the model as a positional argument
        given = {each.arg: each.value for each in call.keywords if each.arg is not None}
        spread = [each.value for each in call.keywords if each.arg is None]
        action, nargs = (_literal(given.get(name)) for name in ("action", "nargs"))
        if spread and not action:
            variable, field = _spread_field(spread[0], kwargs_of)
            takes = configs.takes(configs.fields(variable)[field])
        else:
            takes = takes_of_action(action or "", nargs)
        yield DeclaredFlag(names, takes)


def _literal(node: ast.expr | None) -> str | None:
    if node is None:
        return None
    return str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)


def _kwargs_variables(function: ast.FunctionDef) -> dict[str, str]:
    """Return variables with kwargs of a class, or of a field, as `Class` or `variable[field]`."""
    found = dict[str, str]()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = node.value
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "get_kwargs":
                found[node.targets[0].id] = ast.unparse(value.args[0])
            elif isinstance(value, ast.Subscript):
                found[node.targets[0].id] = ast.unparse(value)
    return found


def _spread_field(node: ast.expr, kwargs_of: Mapping[str, str]) -> tuple[str, str]:
    """Return class and field of `**kwargs["field"]`, also within `**{**kwargs["field"], …}`.

    Raises:
        UnreadableSource: for an expression of another kind.
    """
    if isinstance(node, ast.Dict) and node.keys[0] is None:
        return _spread_field(node.values[0], kwargs_of)
    if isinstance(node, ast.Name) and node.id in kwargs_of:
        return _spread_field(ast.parse(kwargs_of[node.id], mode="eval").body, kwargs_of)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        of = node.value
        if isinstance(of, ast.Call) and ast.unparse(of.func) == "get_kwargs":
            owner = ast.unparse(of.args[0])
        else:
            owner = kwargs_of[ast.unparse(of)]
        return owner, str(node.slice.value)
    raise UnreadableSource(f"kwargs {ast.unparse(node)} are of no known kind")


def _frontend(tree: ast.Module, configs: ConfigClasses) -> Iterator[DeclaredFlag]:
    """Yield the fields of the frontend, changed as `_customize_cli_kwargs` changes them."""
    changed = dict[str, Takes]()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name == "_customize_cli_kwargs":
            for node in ast.walk(function):
                if isinstance(node, ast.Delete) and "nargs" in ast.unparse(node):
                    (target,) = node.targets
                    assert isinstance(target, ast.Subscript)
                    assert isinstance(target.value, ast.Subscript)
                    assert isinstance(target.value.slice, ast.Constant)
                    changed[target.value.slice.value] = Takes.VALUE  # type: ignore[index]
    for name, annotation in configs.fields("FrontendArgs").items():
        flag = f"--{name.replace('_', '-')}"
        yield DeclaredFlag((flag,), changed.get(name) or configs.takes(annotation))
