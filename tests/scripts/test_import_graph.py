"""The import graph: what an arrow, a level, a circle and an upward import is, and what fails."""

import json
import subprocess
import tomllib
from pathlib import Path

import pytest

from scripts.import_graph.__main__ import ROOT, main
from scripts.import_graph.folders import Folder, measure_folders
from scripts.import_graph.permitted import FILE, MAX_OTHER_ENTRIES
from scripts.import_graph.sources import IMPORT_ROOTS, Import, read_sources

PACKAGE = "engine/src/app"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An empty working tree."""
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    return tmp_path


def write(tree: Path, texts: dict[str, str], below: str = PACKAGE) -> None:
    for name, text in texts.items():
        file = tree / below / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def measure(tree: Path, texts: dict[str, str]) -> Folder:
    """Write modules of the package `app` and count its folder."""
    write(tree, {"__init__.py": "", **texts})
    return next(one for one in measure_folders(read_sources(tree)) if one.path == PACKAGE)


def run(tree: Path, *options: str) -> int:
    return main(["--root", str(tree), *options])


def test_several_imports_between_two_entries_make_one_arrow(tree: Path) -> None:
    imports = "import app.b\nfrom app.b import x, y\nfrom app import b\nimport os\n"
    found = measure(tree, {"a.py": imports, "b.py": "", "c.py": ""})
    assert (found.entries, found.arrows) == (3, 1)


@pytest.mark.parametrize(
    "text",
    [
        "from app.sub.deep import name",
        "from app.sub import deep",
        "from app.sub import name",
        "from .sub import deep",
        "from . import sub",
        "def f():\n    import app.sub.deep",
        "if TYPE_CHECKING:\n    from app.sub.deep import Name",
    ],
)
def test_every_form_of_import_is_an_arrow(tree: Path, text: str) -> None:
    found = measure(tree, {"a.py": text, "sub/__init__.py": "", "sub/deep.py": ""})
    assert (found.entries, found.arrows, found.levels) == (2, 1, 2)


def test_relative_imports_of_deep_modules_go_up_by_dots(tree: Path) -> None:
    texts = {"a.py": "", "b.py": "", "sub/__init__.py": "from ..a import x"}
    assert measure(tree, {**texts, "sub/c.py": "from ..b import x"}).arrows == 2


def test_imports_of_a_package_itself_are_no_arrows(tree: Path) -> None:
    found = measure(tree, {"a.py": "from app import name", "b.py": "import app"})
    assert (found.entries, found.arrows, found.levels) == (2, 0, 1)


def test_levels_count_the_entries_of_the_longest_chain(tree: Path) -> None:
    texts = {"a.py": "from app import b, d", "b.py": "import app.c", "c.py": "import app.d"}
    assert measure(tree, {**texts, "d.py": ""}).levels == 4


def test_a_circle_of_modules_is_one_level_and_nothing_upward(tree: Path) -> None:
    texts = {"a.py": "import app.b", "b.py": "import app.c", "c.py": "import app.b\nimport app.d"}
    found = measure(tree, {**texts, "d.py": ""})
    assert (found.levels, found.circles, found.upward) == (3, (("b.py", "c.py"),), ())


def test_an_upward_import_closes_a_circle_of_entries_only(tree: Path) -> None:
    texts = {"base.py": "\nfrom app.sub.low import x", "sub/high.py": "import app.base"}
    found = measure(tree, {**texts, "sub/low.py": ""})
    assert found.circles == (("base.py", "sub/"),)
    assert found.upward == (Import(f"{PACKAGE}/base.py", f"{PACKAGE}/sub/low.py", 2),)


def test_packages_and_benches_are_entries_of_the_repository(tree: Path) -> None:
    write(tree, {"__init__.py": ""})
    write(tree, {"one/__init__.py": "import app", "two/run.py": "from bench.one import x"}, "bench")
    write(tree, {"test_app.py": "import app"}, "tests")
    found = {one.path: (one.entries, one.arrows) for one in measure_folders(read_sources(tree))}
    assert found == {".": (2, 1), "bench": (2, 1)}


def test_the_import_roots_are_those_of_the_tests() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]
    assert set(options["ini_options"]["pythonpath"]) == set(IMPORT_ROOTS)


def test_the_last_line_is_the_counts_as_json(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tree, {"a.py": "import app.b", "b.py": "import app.a"})
    assert run(tree) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == [PACKAGE, "2", "2", "1"]
    assert "  engine/src/app: a.py, b.py" in lines
    folders = {PACKAGE: {"entries": 2, "arrows": 2, "levels": 1}}
    assert json.loads(lines[-1]) == {"folders": folders, "circles": 1, "upward": 0}


def test_a_file_that_does_not_parse_is_named(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tree, {"a.py": "x = 1\ndef f(:\n"})
    assert run(tree) == 2
    assert capsys.readouterr().err.startswith(f"import graph: {PACKAGE}/a.py:2 does not parse: ")


def write_large(tree: Path) -> None:
    """Write a folder that is large enough for a list of permitted counts."""
    write(tree, {f"m{i}.py": "" for i in range(MAX_OTHER_ENTRIES + 1)})


def test_counts_at_or_below_the_permitted_ones_pass(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_large(tree)
    write(tree, {"m1.py": "import app.m2"})
    assert run(tree, "--write") == 0
    assert run(tree, "--check") == 0
    assert "fell" not in capsys.readouterr().out
    write(tree, {"m1.py": ""})
    assert run(tree, "--check") == 0
    assert "2 counts fell" in capsys.readouterr().out


def test_counts_above_the_permitted_ones_are_named_with_remedy(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_large(tree)
    run(tree, "--write")
    write(tree, {"m1.py": "import app.m2", "m2.py": "import app.m1"})
    capsys.readouterr()
    assert run(tree, "--check") == 1
    arrows, circles, total = capsys.readouterr().out.splitlines()
    assert arrows.startswith(f"{PACKAGE}: 2 arrows, at most 0; put modules")
    assert circles.startswith("the repository: 1 circles, at most 0; move what")
    assert total == "import graph: 1 circles, 0 upward imports, 2 counts too high"
    assert run(tree, "--write") == run(tree, "--check") == 0


def test_an_unlisted_folder_may_have_a_limited_number_of_entries(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tree, "--write")
    write_large(tree)
    assert run(tree, "--check") == 1
    assert f"{PACKAGE}: 11 entries, at most 10; " in capsys.readouterr().out


def test_missing_permitted_counts_are_an_error(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tree, "--check") == 2
    assert f"{FILE} is missing; write it with" in capsys.readouterr().err
