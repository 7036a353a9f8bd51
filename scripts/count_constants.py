"""Count the numeric literals of a package: each is a tuning constant that somebody has to justify.

Not counted are -1, 0, 1 and 2, and unit factors: 60, 3600, 1024 and the powers of 1000, where they
are multiplied or divided by. The last line is JSON: the count by file, and the total.
"""

import argparse
import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ADAPTIVE = ROOT / "engine" / "src" / "specdecode_engine" / "adaptive"
PLAIN = (0, 1, 2)
UNIT_FACTORS = (60, 3600, 1024, 1e3, 1e6, 1e9, 1e12, 1e-3, 1e-6, 1e-9, 1e-12)


def main() -> int:
    """Print the count of the package that is named, by default the adaptive policies."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("path", type=Path, nargs="?", default=ADAPTIVE)
    root: Path = parser.parse_args().path
    files = [root] if root.is_file() else sorted(root.rglob("*.py"))
    if not files:
        parser.error(f"{root} contains no Python file")
    counts = {
        path.name if path == root else str(path.relative_to(root)): count_constants(
            path.read_text()
        )
        for path in files
    }
    print(json.dumps({"files": counts, "total": sum(counts.values())}))
    return 0


def count_constants(source: str) -> int:
    """Count the numeric literals of a module that are neither plain nor unit factors."""
    tree = ast.parse(source)
    factors = {id(literal) for literal in _unit_factors(tree)}
    return sum(
        abs(literal.value) not in PLAIN and id(literal) not in factors
        for literal in _literals(tree)
    )


def _literals(tree: ast.AST) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float, complex):
            yield node


def _unit_factors(tree: ast.AST) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv):
            for side in (node.left, node.right):
                if isinstance(side, ast.Constant) and side.value in UNIT_FACTORS:
                    yield side


if __name__ == "__main__":
    sys.exit(main())
