"""File systems on which processes cannot share a database are refused, by what the kernel says is mounted where."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentbus.engine.sqlite.paths import filesystem, refuse_unshared
from agentbus.errors import UnsupportedFileSystem
from tests.support.figures import Figure

MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /proc rw,nosuid shared:5 - proc proc rw
30 22 0:40 / /home rw,relatime shared:9 master:2 - nfs4 server:/home rw,vers=4.2
31 30 8:2 / /home/local rw,relatime - xfs /dev/sda2 rw
32 22 0:41 / /mnt/with\040space rw - cifs //server/share rw
33 22 0:42 / /mnt/données rw - nfs server:/d rw
34 22 0:43 / /mnt/tab\011and\134backslash rw - 9p share rw
35 22 0:44 / /data rw - ext4 /dev/sdb1 rw
36 22 0:45 / /data rw - fuse.sshfs host:/data rw
37 22 0:46 / /v rw - virtiofs tag rw
38 22 0:47 / /t rw - tmpfs tmpfs rw
39 22 0:48 /sub /b rw - btrfs /dev/sdc rw,subvol=/sub
broken line
40 22
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/anything", "ext4"),
        ("/home", "nfs4"),
        ("/home/me/project/.agentbus", "nfs4"),
        ("/homework", "ext4"),
        ("/home/local/x", "xfs"),
        ("/home/localhost", "nfs4"),
        ("/mnt/with space/x", "cifs"),
        ("/mnt/données/bus", "nfs"),
        ("/mnt/tab\tand\\backslash/bus", "9p"),
        ("/data/bus", "fuse.sshfs"),
        ("/t/bus", "tmpfs"),
        ("/b", "btrfs"),
    ],
)
def test_the_file_system_of_a_path_is_found(path: str, kind: str) -> None:
    assert filesystem(Path(path), MOUNTS) == kind


@pytest.mark.fault(20)
@pytest.mark.parametrize(
    "path", ["/home/me", "/mnt/with space", "/mnt/données", "/mnt/tab\tand\\backslash", "/data", "/v/x"]
)
def test_a_file_system_without_shared_memory_is_refused(path: str, figure: Figure) -> None:
    with pytest.raises(UnsupportedFileSystem) as refused:
        refuse_unshared(Path(path), MOUNTS)
    assert refused.value.code == "unsupported_file_system"
    assert path in str(refused.value)
    figure(f"{refused.value.filesystem}: refused")
    assert refused.value.filesystem
    assert "local disk" in (refused.value.fix or "")


@pytest.mark.parametrize("path", ["/", "/home/local/bus", "/t", "/b/bus", "/homework"])
def test_a_local_file_system_is_taken(path: str) -> None:
    refuse_unshared(Path(path), MOUNTS)


def test_the_file_system_of_the_tests_is_taken(tmp_path: Path) -> None:
    refuse_unshared(tmp_path)
