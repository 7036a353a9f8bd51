"""The pins agree with the modules that are built, and any change of either gives a new name."""

import re
import shutil
from pathlib import Path

import pytest

from localnode.paths import GO_MODULES
from localnode.versions import BENCHES, CHECKS, LINTERS, RELEASES, TOOLS, Tool, programs_hash


@pytest.mark.parametrize(
    "tool", TOOLS + CHECKS + BENCHES + RELEASES + LINTERS, ids=lambda tool: tool.name
)
def test_each_tool_is_pinned_by_its_module(tool: Tool) -> None:
    module = (GO_MODULES / tool.wrapper / "go.mod").read_text()
    if tool.wrapper == "pause":  # our own program, which needs no module
        return
    name = re.escape("/".join(tool.package.split("/")[:3]).removesuffix("/cmd"))
    assert re.search(rf"{name}\S* {re.escape(tool.version)}\b", module)


def test_the_hash_follows_every_input(tmp_path: Path) -> None:
    tool = Tool("a", "a", "example.org/a", "v1")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "go.mod").write_text("module a")
    before = programs_hash((tool,), tmp_path)
    assert before != programs_hash((Tool("a", "a", "example.org/a", "v1", tags=("b",)),), tmp_path)
    assert before == programs_hash((tool,), tmp_path)
    assert before != programs_hash((Tool("a", "a", "example.org/a", "v2"),), tmp_path)
    (tmp_path / "a" / "go.mod").write_text("module b")
    assert before != programs_hash((tool,), tmp_path)


def test_the_hash_does_not_depend_on_where_the_checkout_is(tmp_path: Path) -> None:
    shutil.copytree(GO_MODULES, tmp_path / "elsewhere")
    assert programs_hash(TOOLS, GO_MODULES) == programs_hash(TOOLS, tmp_path / "elsewhere")
