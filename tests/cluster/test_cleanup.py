"""Cleaning takes what is ours and refuses what may not be."""

from pathlib import Path

import pytest

from localnode import cleanup
from localnode.errors import NodeError
from localnode.paths import Paths


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(cache=tmp_path / "cache", state=tmp_path / "state")


def test_a_mark_counts_only_as_a_whole(paths: Paths) -> None:
    mark = f"SPECDECODE_NODE={paths.state}".encode()
    assert cleanup.is_marked(b"HOME=/root\0" + mark + b"\0", paths)
    assert not cleanup.is_marked(b"HOME=/root\0" + mark + b"-other\0", paths)
    assert not cleanup.is_marked(b"X" + mark + b"\0", paths)


def test_a_folder_that_we_did_not_make_is_never_deleted(paths: Paths) -> None:
    paths.state.mkdir()
    (paths.state / "thesis.tex").touch()
    with pytest.raises(NodeError, match="not made by localnode"):
        cleanup.clean(paths)
    with pytest.raises(NodeError, match="not empty"):
        cleanup.create_state(paths)
    assert (paths.state / "thesis.tex").exists()


def test_a_state_of_ours_may_be_made_again(paths: Paths) -> None:
    cleanup.create_state(paths)
    (paths.state / "kubeconfig").touch()
    cleanup.create_state(paths)
