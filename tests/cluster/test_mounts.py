"""Mounts are undone from the inside out, and only those below the folder."""

from pathlib import Path

from localnode.mounts import mounts_below

_MOUNTINFO = r"""
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
90 22 254:0 /var/lib/specdecode/kubelet /var/lib/specdecode/kubelet rw shared:1 - ext4 /dev/vda rw
91 90 0:50 / /var/lib/specdecode/kubelet/pods/a/volumes/tmpfs/key rw - tmpfs tmpfs rw
92 22 0:51 / /var/lib/specdecode/containerd/rootfs rw - overlay overlay rw
93 22 0:52 / /var/lib/specdecode-other/rootfs rw - overlay overlay rw
94 22 0:53 / /var/lib/specdecode/with\040space\134x rw - tmpfs tmpfs rw
""".strip()


def test_innermost_first_and_nothing_beside() -> None:
    below = mounts_below(Path("/var/lib/specdecode"), _MOUNTINFO)
    assert [str(path).removeprefix("/var/lib/specdecode/") for path in below] == [
        r"with space\x",
        "containerd/rootfs",
        "kubelet/pods/a/volumes/tmpfs/key",
        "kubelet",
    ]


def test_the_folder_itself_counts() -> None:
    assert mounts_below(Path("/"), _MOUNTINFO)[-1] == Path("/")


def test_no_mounts() -> None:
    assert mounts_below(Path("/srv"), _MOUNTINFO) == []
