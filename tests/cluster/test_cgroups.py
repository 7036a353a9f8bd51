"""A process belongs to a pod of the node exactly when its cgroup lies in our corner."""

from pathlib import Path

import pytest

from localnode import cgroups

_V1 = "5:memory:/specdecode/kubepods/besteffort/pod1/abc\n0::/\n"


@pytest.mark.parametrize(
    ("membership", "ours"),
    [
        (_V1, True),
        ("0::/specdecode/kubepods/pod1", True),
        ("0::/specdecode", True),
        ("0::/specdecode-other/kubepods", False),
        ("0::/kubepods/besteffort/pod1", False),
        ("1:name=systemd:/user:specdecode\n", False),
        ("", False),
    ],
)
def test_membership(membership: str, ours: bool) -> None:
    assert cgroups.is_ours(membership) is ours


def test_one_unified_tree(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    (tmp_path / "system.slice").mkdir()
    assert cgroups.trees(tmp_path) == [tmp_path]


def test_one_tree_for_each_controller(tmp_path: Path) -> None:
    for name in ("memory", "cpu"):
        (tmp_path / name).mkdir()
    assert cgroups.trees(tmp_path) == [tmp_path / "cpu", tmp_path / "memory"]


@pytest.mark.parametrize(("file", "one"), [("cpu.shares", 1024), ("cpu.weight", 100)])
def test_pods_weigh_as_much_as_their_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, one: int
) -> None:
    """The kernel makes these files with a group; here they are there before."""
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    group = tmp_path / "cpu" / cgroups.NAME
    group.mkdir(parents=True)
    (group / file).write_text("1")
    cgroups.create_cgroups(tmp_path)
    assert (group / file).read_text() == str(4 * one)
