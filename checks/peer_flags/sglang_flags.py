"""The flags of `sglang.launch_server`, declared by annotated fields of several classes.

`A[T, "help"]` and `A[T, Arg(...)]` declare a flag; `ServerArgs.add_cli_args` registers the others.
"""

import ast
from collections.abc import Iterator, Mapping

from checks.peer_flags.declarations import (
    DeclaredFlag,
    UnreadableSource,
    calls_of,
    find_class,
    find_function,
    strings_of,
    takes_of_action,
    takes_of_nargs,
)
from specdecode_api.peer_flags import Takes

ARGUMENTS = "sglang/srt/server_args.py"
FIELDS = "sglang/srt/arg_groups/fields/"
FILES = (ARGUMENTS, FIELDS)


def read_flags(sources: Mapping[str, str]) -> list[DeclaredFlag]:
    """Return every flag of `sglang.launch_server`.

    Args:
        sources: text of the modules in FILES by path.

    Raises:
        UnreadableSource: for a declaration of a kind that is not known.
    """
    arguments = find_class(ast.parse(sources[ARGUMENTS]), "ServerArgs")
    found = list(_registered(find_function(arguments, "add_cli_args")))
    for name, text in sources.items():
        if name.startswith(FIELDS):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    found += _declared(node.target.id, node.annotation)
    return found


def _registered(function: ast.FunctionDef) -> Iterator[DeclaredFlag]:
    for call in calls_of(function, "add_argument"):
        given = {each.arg: each.value for each in call.keywords if each.arg is not None}
        action = _text(given.get("action")) or ""
        has_value = "nargs" in given or "choices" in given
        if action == "DeprecatedStoreConstAction" and not has_value:
            takes = Takes.SWITCH
        else:
            takes = takes_of_action(action, _nargs(given.get("nargs")))
        yield DeclaredFlag(strings_of(call.args), takes)


def _declared(field: str, annotation: ast.expr) -> Iterator[DeclaredFlag]:
    """Yield the flag of an annotated field, if it is on the command line."""
    is_annotated = isinstance(annotation, ast.Subscript) and _text(annotation.value) in {
        "A",
        "Annotated",
    }
    if not is_annotated:
        return
    assert isinstance(annotation, ast.Subscript)
    assert isinstance(annotation.slice, ast.Tuple)
    kind, *notes = annotation.slice.elts
    given = dict[str | None, ast.expr]()
    for note in notes:
        if isinstance(note, ast.Call) and _text(note.func) == "Arg":
            given = {each.arg: each.value for each in note.keywords}
            break
        if isinstance(note, ast.Call):
            continue  # a derived value or a namespace
        break
    else:
        return
    if _text(given.get("no_cli")) == "True":
        return
    flag = _literal(given.get("cli_name")) or f"--{field.replace('_', '-')}"
    aliases = given.get("aliases")
    names = strings_of(aliases.elts) if isinstance(aliases, ast.List) else ()
    yield DeclaredFlag((flag, *names), _takes(kind, given))


def _takes(kind: ast.expr, given: Mapping[str | None, ast.expr]) -> Takes:
    action, nargs = _text(given.get("action")), _nargs(given.get("nargs"))
    if action is not None:
        extra = ast.unparse(given["action_kwargs"]) if "action_kwargs" in given else ""
        if "StoreTrue" in action or ("StoreConst" in action and "nargs" not in extra):
            return Takes.SWITCH
        return takes_of_action(action, "+" if "nargs" in extra else nargs)
    inner = _without_none(kind)
    if inner == "bool":
        return Takes.SWITCH
    is_list = inner.startswith(("List", "list")) and "type_parser" not in given
    if is_list:
        return takes_of_nargs(nargs or "+")
    return takes_of_nargs(nargs)


def _without_none(kind: ast.expr) -> str:
    text = ast.unparse(kind)
    if text.startswith("Optional["):
        return text[len("Optional[") : -1]
    return text.removesuffix(" | None")


def _text(node: ast.expr | None) -> str | None:
    if node is None or isinstance(node, ast.Constant):
        return _literal(node)
    return ast.unparse(node)


def _literal(node: ast.expr | None) -> str | None:
    return str(node.value) if isinstance(node, ast.Constant) else None


def _nargs(node: ast.expr | None) -> str | None:
    value = _literal(node)
    if node is not None and value is None:
        raise UnreadableSource(f"nargs {ast.unparse(node)} is no literal")
    return None if value in (None, "None") else value
