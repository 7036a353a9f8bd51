"""Move the files of one area of scripts/layout.json and rewrite what names them.

Imports, dotted module names and paths follow the files, in Python sources and in every other text
file. A merged file's definitions join the target's; named definitions of a divided file go to
another one. Nothing is written if a source is missing, a target exists, an import cannot be
resolved, or the tree has uncommitted changes. The `ast` of each file must be that of before.
"""

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
LAYOUT = ROOT / "scripts" / "layout.json"
PACKAGES = ("crds", "kernels", "server", "engine", "router", "operator")
OLD_ROOTS = (*tuple(f"{each}/src" for each in PACKAGES), "bench", "cluster", "examples/models", "")
NEW_ROOTS = (*tuple(f"{each}/src" for each in PACKAGES), "cluster", "examples/models", "")
UNCHANGED = ("CHANGELOG.md", "uv.lock", "bench/results/", "docs/decisions/", "scripts/layout.json")
MAX_LINES = 350


class CannotMove(Exception):
    """The layout does not fit the tree; nothing was written."""


@dataclass(frozen=True)
class Area:
    """Files to move (old path to new path), to merge (old to target's old path) and to divide."""

    move: Mapping[str, str]
    merge: Mapping[str, str]
    split: Mapping[str, Mapping[str, tuple[str, ...]]]
    packages: Mapping[str, str]

    def place(self, path: str) -> str:
        """Return where the content of a file lies afterwards."""
        seen = self.merge.get(path, path)
        return self.move.get(seen, seen)


def module_of(path: str, roots: Iterable[str]) -> str | None:
    """Return the dotted name of a Python file, or None for a file outside the roots."""
    for root in roots:
        inside = PurePosixPath(path)
        if root:
            if not path.startswith(root + "/"):
                continue
            inside = inside.relative_to(root)
        parts = list(inside.with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        return ".".join(parts) or None
    return None


class Names:
    """What each old module, and each definition that moves alone, is called afterwards."""

    def __init__(self, area: Area, files: Iterable[str]) -> None:
        self.modules: dict[str, str] = {}
        self.definitions: dict[tuple[str, str], str] = {}
        self.known: set[str] = set()
        for path in (each for each in files if each.endswith(".py")):
            old = module_of(path, OLD_ROOTS)
            if old is None:
                continue
            self.known.add(old)
            parents = old.split(".")
            self.known.update(".".join(parents[:n]) for n in range(1, len(parents)))
            new = module_of(area.place(path), NEW_ROOTS)
            if area.place(path) != path and new is not None and new != old:
                self.modules[old] = new
        for path, targets in area.split.items():
            for target, names in targets.items():
                for name in names:
                    old, new = module_of(path, OLD_ROOTS), module_of(target, NEW_ROOTS)
                    assert old
                    assert new
                    self.definitions[old, name] = new

    def dotted(self, name: str) -> str:
        """Return a dotted name whose longest prefix that is a moved module is replaced."""
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            prefix = ".".join(parts[:length])
            if length < len(parts) and (prefix, parts[length]) in self.definitions:
                return ".".join((self.definitions[prefix, parts[length]], *parts[length:]))
            if prefix in self.modules:
                return ".".join((self.modules[prefix], *parts[length:]))
            if prefix in self.known:
                return name
        return name


@dataclass(frozen=True)
class Edit:
    """Replacement of the characters from `start` up to `end`."""

    start: int
    end: int
    text: str


def offsets(source: str) -> list[int]:
    """Return where each line begins, in characters."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def span(source: str, starts: list[int], node: ast.stmt | ast.expr) -> tuple[int, int]:
    """Return first and last character of a node; columns of `ast` count bytes of UTF-8."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None

    def at(line: int, column: int) -> int:
        start = starts[line - 1]
        text = source[start : starts[line]]
        return start + len(text.encode()[:column].decode())

    return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)


class Rewriter:
    """Rewrites the imports and module names of one file."""

    def __init__(self, names: Names, path: str, new_path: str, texts: "Texts") -> None:
        self.names, self.path, self.texts = names, path, texts
        self.own_old = module_of(path, OLD_ROOTS) or ""
        roots = OLD_ROOTS if new_path == path else NEW_ROOTS
        self.own_new = module_of(new_path, roots) or ""
        self.renamed: dict[str, str] = {}  # a name of a module in this file, and its new name

    def rewrite(self, source: str) -> str:
        """Return the source with its imports, module names and paths replaced."""
        tree, starts = ast.parse(source), offsets(source)
        edits = [
            Edit(*span(source, starts, node), text)
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            and (text := self._statement(node, source)) is not None
        ]
        kept = [
            span(source, starts, node)
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        edits += self._uses(tree, source, starts)
        return self._apply(source, edits, kept)

    def _statement(self, node: ast.Import | ast.ImportFrom, source: str) -> str | None:
        lines = list(self._import(node) if isinstance(node, ast.Import) else self._from(node))
        before = ast.dump(node)
        after = [ast.dump(each) for line in lines for each in ast.parse(line).body]
        if after == [before]:
            return None
        if not lines:
            return "pass" if node.col_offset else ""
        return ("\n" + " " * node.col_offset).join(lines)

    def _import(self, node: ast.Import) -> Iterator[str]:
        for alias in node.names:
            new = self.names.dotted(alias.name)
            suffix = f" as {alias.asname}" if alias.asname else ""
            if new != alias.name and "." not in alias.name and not alias.asname:
                if "." in new:
                    package, _, last = new.rpartition(".")
                    if last != alias.name:
                        self.renamed[alias.name] = last
                    yield f"from {package} import {last}"
                    continue
                self.renamed[alias.name] = new
            yield f"import {new}{suffix}"

    def _from(self, node: ast.ImportFrom) -> Iterator[str]:
        module = node.module or ""
        if node.level:
            package = self.own_old.split(".")
            if not self.path.endswith("__init__.py"):
                package.pop()
            package = package[: len(package) - node.level + 1]
            module = ".".join((*package, *filter(None, [module])))
            wanted = {module, *(f"{module}.{each.name}" for each in node.names)}
            if self.own_old == self.own_new and not wanted & set(self.names.modules):
                yield ast.unparse(node)
                return
        groups: dict[str, list[str]] = {}
        for alias in node.names:
            whole, name = f"{module}.{alias.name}", alias.name
            if (module, name) in self.names.definitions:
                source = self.names.definitions[module, name]
            elif whole in self.names.known:
                source, _, name = self.names.dotted(whole).rpartition(".")
                if name != alias.name and not alias.asname:
                    self.renamed[alias.name] = name
                if not source:
                    yield f"import {name}" + (f" as {alias.asname}" if alias.asname else "")
                    continue
            else:
                source = self.names.dotted(module)
            if self._is_own(module, whole, f"{source}.{name}", source):
                continue
            groups.setdefault(source, []).append(
                f"{name} as {alias.asname}" if alias.asname else name
            )
        for source, imported in groups.items():
            yield f"from {source} import {', '.join(imported)}"

    def _is_own(self, module: str, whole: str, new_whole: str, source: str) -> bool:
        """Return whether a name comes from a file that is merged with this one."""
        if whole in self.names.known:
            return new_whole == self.own_new and whole != self.own_old
        return source == self.own_new and module != self.own_old

    def _uses(self, tree: ast.Module, source: str, starts: list[int]) -> Iterator[Edit]:
        last = self.own_new.rpartition(".")[2]
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
                continue
            name = node.value.id
            if name not in self.renamed:
                continue
            start, end = span(source, starts, node.value)
            if self.renamed[name] == last:
                yield Edit(start, end + 1, "")  # now in this file
            else:
                yield Edit(start, end, self.renamed[name])

    def _apply(self, source: str, edits: list[Edit], kept: list[tuple[int, int]]) -> str:
        pieces, at = [], 0
        whole = edits + [
            Edit(start, end, source[start:end])
            for start, end in kept
            if not any(each.start == start for each in edits)
        ]
        for edit in sorted(whole, key=lambda each: each.start):
            pieces += [self.texts.replace(source[at : edit.start]), edit.text]
            at = edit.end
        return "".join((*pieces, self.texts.replace(source[at:])))


class Texts:
    """Replaces dotted module names and paths in text."""

    def __init__(self, area: Area, names: Names) -> None:
        self.names = names
        self.paths: dict[str, str] = {}
        for old in (*area.move, *area.merge):
            self._add(old, area.place(old))
        self._add_folders(area)
        joined = "|".join(re.escape(each) for each in sorted(self.paths, key=len, reverse=True))
        self._path = re.compile(rf"(?<![\w./-])(?:{joined})(?![\w-])") if joined else None
        tops = {each.split(".")[0] for each in names.modules}
        packaged = sorted(each for each in tops if each.startswith("specdecode_"))
        self._dotted = re.compile(rf"\b(?:{'|'.join(packaged)})(?:\.\w+)+") if packaged else None
        bare = "|".join(sorted(tops - set(packaged), key=len, reverse=True))
        self._program = re.compile(rf"""(-m"?,? "?)((?:{bare})(?:\.\w+)*)\b""") if bare else None
        self._quoted = re.compile(rf"""(["'])((?:{bare})(?:\.\w+)+)(?=["'])""") if bare else None

    def _add(self, old: str, new: str) -> None:
        self.paths[old] = new
        for package in PACKAGES:
            root = f"{package}/src/"
            if old.startswith(root):
                self.paths[old.removeprefix(root)] = new.removeprefix(root)
                short = old.removeprefix(root).split("/", 1)[1]
                if "/" in short:
                    self.paths[short] = new.removeprefix(root).split("/", 1)[1]
                self.paths[old.removeprefix(f"{package}/")] = new.removeprefix(f"{package}/")
        if old.startswith("tests/"):
            self.paths[old.removeprefix("tests/")] = new.removeprefix("tests/")
        if old.startswith("bench/") and "/" in old.removeprefix("bench/"):
            self.paths.setdefault(old.removeprefix("bench/"), new)

    def _add_folders(self, area: Area) -> None:
        folders: dict[str, list[str]] = {}
        for old in area.move:
            folder, new = str(PurePosixPath(old).parent), PurePosixPath(area.place(old)).parent
            folders.setdefault(folder, []).append(str(new))
        for folder, places in folders.items():
            if folder.startswith("bench/"):
                self.paths[folder] = Counter(places).most_common(1)[0][0]

    def replace(self, text: str) -> str:
        """Return the text with old module names and paths replaced."""
        if self._path:
            text = self._path.sub(lambda found: self.paths[found[0]], text)
        if self._dotted:
            text = self._dotted.sub(lambda found: self.names.dotted(found[0]), text)
        if self._program:
            text = self._program.sub(lambda found: found[1] + self.names.dotted(found[2]), text)
        if self._quoted:
            text = self._quoted.sub(self._in_quotes, text)
        return text

    def _in_quotes(self, found: re.Match[str]) -> str:
        """Replace a quoted module; a field of a resource may begin with a package's name too."""
        first, second, *_ = found[2].split(".")
        if f"{first}.{second}" not in self.names.modules:
            return found[0]
        return found[1] + self.names.dotted(found[2])


def merge(target: str, part: str) -> str:
    """Return the target's source with the imports and definitions of another file."""
    into, tree = ast.parse(target), ast.parse(part)
    lines, part_lines = target.splitlines(), part.splitlines()

    def is_import(node: ast.stmt) -> bool:
        return isinstance(node, ast.Import | ast.ImportFrom)

    head = 1 if ast.get_docstring(tree) is not None else 0
    imports = [node for node in tree.body[head:] if is_import(node)]
    body = [node for node in tree.body[head:] if not is_import(node)]
    first = max((node.end_lineno or 0 for node in (*tree.body[:head], *imports)), default=0)
    moved = comment(ast.get_docstring(tree)) + "\n".join(part_lines[first:]).strip("\n")
    statements = [ast.unparse(node) for node in imports]
    at = into.body[0].end_lineno or 0 if ast.get_docstring(into) is not None else 0
    own_imports = [node for node in into.body if is_import(node)]
    end = max([at, *((node.end_lineno or 0) for node in own_imports)])
    defined = {name for node in body for name in bound(node)}
    if defined & used_at_import(into):
        after = [*lines[at:end], "", "", moved, "", "", *lines[end:]]
    else:
        after = [*lines[at:], "", "", moved]
    return "\n".join([*lines[:at], "", *statements, *after]) + "\n"


def comment(docstring: str | None) -> str:
    """Return a docstring of several lines as a comment; one line states what names state."""
    if docstring is None or "\n" not in docstring:
        return ""
    return "".join(f"# {line}".rstrip() + "\n" for line in docstring.splitlines()) + "\n"


def bound(node: ast.stmt) -> set[str]:
    """Return the names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {each.id for each in node.targets if isinstance(each, ast.Name)}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    return set()


def used_at_import(tree: ast.Module) -> set[str]:
    """Return the names that a module reads while it is imported, outside function bodies."""
    used: set[str] = set()
    nodes: list[ast.AST] = list(tree.body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Name):
            used.add(node.id)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            nodes.append(node.args)
            if not isinstance(node, ast.Lambda):
                nodes += [*node.decorator_list, *filter(None, [node.returns])]
            continue
        nodes += ast.iter_child_nodes(node)
    return used


def divide(source: str, names: Iterable[str]) -> tuple[str, str]:
    """Return a source without the named definitions, and their text."""
    tree, lines = ast.parse(source), source.splitlines()
    chosen = [node for node in tree.body if bound(node) & set(names)]
    kept, moved = list(lines), []
    for node in reversed(chosen):
        decorators = getattr(node, "decorator_list", [])
        start = min([node.lineno, *(each.lineno for each in decorators)]) - 1
        end = node.end_lineno or 0
        following = next((each for each in tree.body if each.lineno > end), None)
        stop = following.lineno - 1 if following else len(lines)
        if end < stop and lines[end].startswith('"""'):
            end = stop
        moved.insert(0, "\n".join(lines[start:end]))
        del kept[start:end]
    return "\n".join(kept) + "\n", "\n\n\n".join(moved) + "\n"


def tracked() -> list[str]:
    """Return the paths of all files under version control."""
    return subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split("\n")[:-1]


def check(area: Area, files: set[str]) -> None:
    """Raise CannotMove unless the layout fits the tree."""
    status = ["git", "status", "--porcelain", "--untracked-files=no"]
    if subprocess.check_output(status, cwd=ROOT, text=True).strip():
        raise CannotMove("the tree has uncommitted changes; commit them first")
    sources = {*area.move, *area.merge, *area.merge.values(), *area.split}
    for path in sorted(sources - files):
        raise CannotMove(f"{path}: no such file; correct scripts/layout.json")
    for path in sorted(set(area.move.values()) & files):
        if path not in area.move:
            raise CannotMove(f"{path}: exists already; correct scripts/layout.json")
    if len(set(area.move.values())) < len(area.move):
        raise CannotMove("two files move to one path")


def read_area(name: str, files: set[str]) -> Area:
    """Read an area of the layout."""
    area = json.loads(LAYOUT.read_text())[name]
    split = {
        path: {target: tuple(names) for target, names in targets.items()}
        for path, targets in area.get("split", {}).items()
    }
    return Area(area.get("move", {}), area.get("merge", {}), split, area.get("packages", {}))


def resolve_all(rewritten: Mapping[str, str]) -> None:
    """Raise CannotMove for an import of this repository's modules that no file provides."""
    modules: set[str] = set()
    for path in rewritten:
        roots = (OLD_ROOTS, NEW_ROOTS) if path.endswith(".py") else ()
        for module in filter(None, (module_of(path, each) for each in roots)):
            parts = module.split(".")
            modules.update(".".join(parts[:n]) for n in range(1, len(parts) + 1))
    tops = {each.split(".")[0] for each in modules if each.startswith(("specdecode_",))}
    for path, source in rewritten.items():
        if not path.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                wanted = [node.module]
            elif isinstance(node, ast.Import):
                wanted = [each.name for each in node.names]
            else:
                continue
            for each in wanted:
                if each.split(".")[0] in tops and each not in modules:
                    raise CannotMove(f"{path}:{node.lineno}: no module {each}")


def shape(source: str, renamed: Mapping[str, str], own: str) -> list[str]:
    """Return each definition of a source as text, without imports."""

    class Normal(ast.NodeTransformer):
        def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
            self.generic_visit(node)
            if isinstance(node.value, ast.Name) and node.value.id in renamed:
                if renamed[node.value.id] == own:
                    return ast.Name(node.attr, ast.Load())
                node.value.id = renamed[node.value.id]
            return node

    tree = Normal().visit(ast.parse(source))
    shapes = [
        ast.dump(node)
        for node in tree.body
        if not isinstance(node, ast.Import | ast.ImportFrom)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    statement = r"(?:ImportFrom\([^\]]*\]\S* level=\d+\)|Import\(names=[^\]]*\]\))"
    return [re.sub(rf"{statement}(?:, {statement})*", "I", each) for each in shapes]


def main() -> int:
    """Move one area; with --dry-run only check what would be written."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("area")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    try:
        count = run(arguments.area, arguments.dry_run)
    except CannotMove as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{count} files written")
    return 0


def run(name: str, dry_run: bool) -> int:
    """Move one area and return the number of files that were written."""
    paths = tracked()
    files = set(paths)
    area = read_area(name, files)
    check(area, files)
    names = Names(area, paths)
    texts = Texts(area, names)
    before = {path: content for path in paths if (content := read(path)) is not None}
    after: dict[str, str] = {}
    expected: dict[str, list[str]] = {}
    parts: dict[str, list[tuple[str, str]]] = {}
    for path, content in before.items():
        new_path = area.place(path)
        if path.startswith(UNCHANGED) or path == "scripts/move_files.py":
            after[path] = content
            continue
        if not path.endswith(".py"):
            after[new_path] = texts.replace(content)
            continue
        rewriter = Rewriter(names, path, new_path, texts)
        rewritten = rewriter.rewrite(content)
        own = rewriter.own_new.rpartition(".")[2]
        expected.setdefault(new_path, []).extend(
            shape(texts.replace(content), rewriter.renamed, own)
        )
        if path in area.merge:
            parts.setdefault(new_path, []).append((path, rewritten))
        else:
            after[new_path] = rewritten
    for path, pieces in parts.items():
        for source, piece in pieces:
            after[path] = merge(after[path], piece)
            if len(after[path].splitlines()) > MAX_LINES + 15:
                print(f"{source}: {path} would have {len(after[path].splitlines())} lines")
    divide_all(area, after, expected)
    resolve_all(after)
    compare(after, expected)
    if dry_run:
        return 0
    return write(area, before, after)


def divide_all(area: Area, after: dict[str, str], expected: dict[str, list[str]]) -> None:
    """Carry the named definitions of divided files to their targets."""
    for path, targets in area.split.items():
        place = area.place(path)
        for target, wanted in targets.items():
            after[place], text = divide(after[place], wanted)
            expected.setdefault(place, [])
            after[target] = merge(after[target], text) if target in after else text
            print(f"{place} -> {target}: {', '.join(wanted)}; complete the imports by hand")
            expected.pop(place, None)
            expected.pop(target, None)


def compare(after: Mapping[str, str], expected: Mapping[str, list[str]]) -> None:
    """Raise CannotMove where a file's definitions are not those of before."""

    for path, shapes in expected.items():
        now = shape(after[path], {}, "")
        if sorted(now) != sorted(shapes):
            changed = [(a, b) for a, b in zip(sorted(shapes), sorted(now), strict=False) if a != b]
            raise CannotMove(f"{path}: definitions differ: {first_difference(*changed[0])}")


def first_difference(one: str, other: str) -> str:
    """Return the surroundings of the first character in which two texts differ."""
    at = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    return f"{one[max(0, at - 150) : at + 100]!r} / {other[max(0, at - 150) : at + 100]!r}"


def read(path: str) -> str | None:
    """Return the text of a file, or None for binary files and links."""
    file = ROOT / path
    if file.is_symlink() or not file.is_file():
        return None
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def write(area: Area, before: Mapping[str, str], after: Mapping[str, str]) -> int:
    """Move files with git and write those whose content has changed."""
    for old, new in area.move.items():
        (ROOT / new).parent.mkdir(parents=True, exist_ok=True)
        aside = ROOT / (new + ".moving")
        subprocess.run(["git", "mv", old, str(aside)], cwd=ROOT, check=True)
    for new in area.move.values():
        subprocess.run(["git", "mv", new + ".moving", new], cwd=ROOT, check=True)
    for old in area.merge:
        subprocess.run(["git", "rm", "-q", old], cwd=ROOT, check=True)
    for folder, line in area.packages.items():
        (ROOT / folder / "__init__.py").write_text(f'"""{line}"""\n', encoding="utf-8")
    count = len(area.packages)
    for path, content in after.items():
        if before.get(path) != content or not (ROOT / path).exists():
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(content, encoding="utf-8")
            count += 1
    return count


if __name__ == "__main__":
    sys.exit(main())
