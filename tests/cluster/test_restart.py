"""A part of the node is killed and comes back as it was started."""

import math
from pathlib import Path

import pytest

from localnode import processes
from localnode.errors import NodeError
from localnode.launch import Launcher
from localnode.paths import Paths
from localnode.restart import kill_part, running_s, start_part


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(cache=tmp_path / "cache", state=tmp_path / "state")


def test_a_killed_part_starts_again_with_its_words(paths: Paths) -> None:
    first = Launcher.for_node(paths).launch("part", ["sleep", "600"])
    words = kill_part(paths, "part")
    assert words == ["sleep", "600"]
    assert not processes.is_running(first)
    start_part(paths, "part", words)
    second = processes.read_records(paths.records)["part"]
    assert second != first
    assert processes.is_running(second)
    assert 0 <= running_s(paths, "part") < 60
    processes.stop([second])
    assert running_s(paths, "part") == math.inf


def test_a_part_can_be_killed_as_soon_as_it_is_started(paths: Paths) -> None:
    launcher = Launcher.for_node(paths)
    for _ in range(20):
        launcher.launch("part", ["sleep", "600"])
        assert kill_part(paths, "part") == ["sleep", "600"]


def test_what_does_not_run_cannot_be_killed(paths: Paths) -> None:
    with pytest.raises(NodeError, match="part does not run"):
        kill_part(paths, "part")
