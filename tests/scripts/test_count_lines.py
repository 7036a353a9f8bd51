"""The line count: what a code line is, how long a function is, and which limits are exceeded."""

import json

import pytest

from scripts import count_lines
from scripts.count_lines import Function, exceeded, measure_module, measure_package

SOURCE = '''"""Docstring
of two lines."""

import os  # code


LIMIT = 3
"""What it limits."""


@cached
def f(a):
    """Return."""
    # a comment

    text = """a string
    that is code"""
    return (
        text
    )
'''


def test_code_lines_leave_out_docstrings_comments_and_blank_lines() -> None:
    module = measure_module("a.py", SOURCE)
    assert (module.lines, module.physical_code_lines, module.code_lines) == (20, 9, 6)


def test_a_function_counts_from_its_decorator_to_its_end() -> None:
    assert measure_module("a.py", SOURCE).functions == (Function("a.py:12 f", 10),)


def test_every_exceeded_limit_is_named_with_figure_and_limit() -> None:
    long = measure_module("long.py", "x = 1\n" * 500)
    small = measure_package([measure_module("a.py", SOURCE)], 3)
    sizes = dict.fromkeys(("crds", "kernels", "operator"), small)
    sizes["engine"] = measure_package([long], 25)
    median = count_lines.MAX_MEDIAN_FILE_LINES
    assert list(exceeded(sizes, median + 1)) == [
        "entries at the engine's root: 25, at most 21",
        f"median lines of a file of engine, kernels and crds: {median + 1}, at most {median}",
        "lines of long.py: 500, at most 400",
    ]


def test_the_last_line_has_the_figures_of_every_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert count_lines.main([]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(figures) == {*count_lines.PACKAGES, "core"}
    for name in count_lines.PACKAGES:
        assert 0 < figures[name]["code_lines"] < figures[name]["lines"]
    assert figures["core"]["lines"] == sum(figures[n]["lines"] for n in count_lines.CORE)
