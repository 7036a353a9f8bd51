"""The HTTP routes of `vllm serve` and `sglang.launch_server`, read with `ast`."""

import ast
from collections.abc import Iterator, Mapping

from checks.peer_flags.declarations import UnreadableSource
from specdecode_api.peer_flags import Peer

FILES: Mapping[Peer, tuple[str, ...]] = {
    Peer.VLLM: ("vllm/entrypoints/",),
    Peer.SGLANG: (
        "sglang/srt/entrypoints/http_server.py",
        "sglang/srt/entrypoints/v1_loads.py",
        "sglang/srt/entrypoints/elastic_ep.py",
        "sglang/srt/utils/common.py",  # /metrics
    ),
}
OTHER_SERVERS = frozenset(
    {"vllm/entrypoints/launchers/dp_supervisor.py", "vllm/entrypoints/cli/preload.py"}
)
"""Modules whose applications are not the server's."""
PATHS: Mapping[str, str | None] = {
    "app.swagger_ui_oauth2_redirect_url": "/docs/oauth2-redirect",
    "route.path": None,  # of a router that is read where its routes are declared
    "_ollama_root_route": None,  # from the environment; without it the path is /
}
"""Paths that are no literals, by expression; None: not a route of its own."""
METHODS = frozenset({"get", "post", "put", "delete", "patch", "head", "options", "websocket"})
SEVERAL = frozenset({"api_route", "add_api_route"})

Routes = Mapping[str, frozenset[str]]
"""Methods by path; WEBSOCKET is one of them."""


def read_routes(sources: Mapping[str, str]) -> Routes:
    """Return the routes that modules declare by decorators and calls, and those of FastAPI itself.

    Args:
        sources: text of modules by path.

    Raises:
        UnreadableSource: for a path that is neither a literal nor known.
    """
    found = dict[str, set[str]]()
    for name, text in sources.items():
        if name in OTHER_SERVERS:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                for path, methods in _routes_of(node, name):
                    found.setdefault(path, set()).update(methods)
    return {path: frozenset(methods) for path, methods in found.items()}


def _routes_of(call: ast.Call, module: str) -> Iterator[tuple[str, set[str]]]:
    match call.func:
        case ast.Name(id="FastAPI"):
            yield from ((path, {"GET"}) for path in _documents(call))
        case ast.Name(id="Mount") if call.args:
            yield _path(call.args[0], module) or "", {"GET"}
        case ast.Attribute(value=ast.Name(id=holder), attr=attribute) if _is_app(holder):
            methods = _methods(call, attribute)
            path = _path(call.args[0], module) if methods and call.args else None
            if path is not None:
                yield path, methods


def _is_app(name: str) -> bool:
    return name == "app" or name.endswith("router")


def _methods(call: ast.Call, attribute: str) -> set[str]:
    """Return the methods of a route; none for a call that declares no route."""
    if attribute == "mount":
        return {"GET"}
    if attribute in METHODS:
        return {attribute.upper()}
    if attribute not in SEVERAL:
        return set()
    given = next((each.value for each in call.keywords if each.arg == "methods"), None)
    names = given.elts if isinstance(given, ast.List) else []
    return {ast.literal_eval(each) for each in names} or {"GET"}


def _path(node: ast.expr, module: str) -> str | None:
    """Return a path: a literal, the default of a variable of the environment, or a known one."""
    match node:
        case ast.Constant(value=str() as path):
            return path
        case ast.Call(args=[_, ast.Constant(value=str() as path)]) if (
            ast.unparse(node.func) == "os.environ.get"
        ):
            return path
    text = ast.unparse(node)
    if text not in PATHS:
        raise UnreadableSource(f"{module}: the path {text} is no literal")
    return PATHS[text]


DOCUMENTS = {
    "openapi_url": ("/openapi.json",),
    "docs_url": ("/docs", "/docs/oauth2-redirect"),
    "redoc_url": ("/redoc",),
}
"""Paths that FastAPI serves unless an argument is None."""


def _documents(call: ast.Call) -> Iterator[str]:
    without = {
        each.arg
        for each in call.keywords
        if isinstance(each.value, ast.Constant) and each.value.value is None
    }
    for argument, paths in DOCUMENTS.items():
        if argument not in without:
            yield from paths
