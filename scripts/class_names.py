"""Checks that a class name is defined once over the packages."""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("crds", "kernels", "server", "engine", "router", "operator")


def duplicates(sources: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return by class name the places `file:line` that define it, where there are two or more."""
    places = defaultdict[str, list[str]](list)
    for file, text in sources:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{file}:{node.lineno}")
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def package_sources() -> Iterable[tuple[str, str]]:
    """Yield path and text of every module of the packages."""
    for package in PACKAGES:
        for path in sorted((ROOT / package / "src").rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def main() -> int:
    """Print the names that are defined more than once; 1 if there are any."""
    found = duplicates(package_sources())
    for name, places in found.items():
        print(f"class {name} is defined {len(places)} times: {', '.join(places)}")
    print(f"class names: {len(found)} defined more than once")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
