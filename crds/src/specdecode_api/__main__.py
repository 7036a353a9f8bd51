"""`python -m specdecode_api` writes the generated files; --check reports stale ones."""

import argparse
import difflib
import sys
from pathlib import Path

from specdecode_api.generate import generated_files

REPOSITORY = Path(__file__).resolve().parents[3]


def main(arguments: list[str] | None = None) -> int:
    """Write every generated file, or compare; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m specdecode_api", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when stale")
    parser.add_argument(
        "--root", type=Path, default=REPOSITORY, help="root folder of the repository"
    )
    options = parser.parse_args(arguments)
    stale = False
    for name, text in generated_files().items():
        path = options.root / name
        present = path.read_text() if path.exists() else ""
        if present == text:
            continue
        stale = True
        if options.check:
            sys.stdout.writelines(_difference(name, present, text))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {name}")
    return 1 if stale and options.check else 0


def _difference(name: str, present: str, wanted: str) -> list[str]:
    return list(
        difflib.unified_diff(
            present.splitlines(keepends=True),
            wanted.splitlines(keepends=True),
            fromfile=f"{name} (present)",
            tofile=f"{name} (generated)",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
