"""Files of a checkpoint: recorded by path, size and hash; nothing outside the root is read."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus import Agent, Bus
from agentbus.errors import InvalidInput, OutOfRange, UnknownCheckpoint, UnknownFile, UnreadableFile, UnsafePath
from agentbus.records import FileCheck, FileReference
from tests.api.helpers import refusing, worker
from tests.conftest import Engine
from tests.support.cases import each


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a few files, next to a secret that must not be readable through it."""
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "root"
    (root / "docs").mkdir(parents=True)
    (root / "plan.md").write_text("the plan")
    (root / "docs" / "design.md").write_text("the design")
    (root / "empty").touch()
    return root


@pytest.fixture
async def a(bus: Bus) -> Agent:
    return await worker(bus, "a")


def reference(path: str, content: bytes) -> FileReference:
    return FileReference(path, len(content), sha256(content).hexdigest())


async def verified(bus: Bus, id: int, root: Path) -> dict[str, str]:
    return {check.path: check.status for check in await bus.checkpoints.verify(id, root)}


async def nothing_saved(bus: Bus) -> bool:
    return (await bus.checkpoints.list()).items == []


async def test_files_are_kept_by_path_size_and_hash(bus: Bus, a: Agent, root: Path) -> None:
    big = os.urandom(3_000_001)
    (root / "big").write_bytes(big)
    saved = await a.checkpoint("n", 1, files=["plan.md", Path("docs/design.md"), "empty", "big"], root=root)
    assert saved.files == [
        reference("plan.md", b"the plan"),
        reference("docs/design.md", b"the design"),
        reference("empty", b""),
        reference("big", big),
    ]
    assert await a.restore() == saved
    assert await bus.checkpoints.verify(saved, root) == [FileCheck(file.path, "ok") for file in saved.files]
    assert await bus.checkpoints.verify(saved.id, str(root)) == await bus.checkpoints.verify(saved, root)


@pytest.mark.one_engine
async def test_the_root_defaults_to_the_working_directory(
    bus: Bus, a: Agent, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    saved = await a.checkpoint("n", 1, files=["plan.md"])
    assert await bus.checkpoints.verify(saved) == [FileCheck("plan.md", "ok")]
    async with a.unit() as unit:
        unit.checkpoint("unit", 1, files=["plan.md"])
        monkeypatch.chdir(root.parent)
    found = await a.restore("unit")
    assert found is not None
    assert [file.path for file in found.files] == ["plan.md"]


@pytest.mark.one_engine
async def test_a_root_may_itself_be_reached_through_a_link(bus: Bus, a: Agent, root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    saved = await a.checkpoint("n", 1, files=["plan.md"], root=link)
    assert await verified(bus, saved.id, root) == {"plan.md": "ok"}


@pytest.mark.one_engine
async def test_paths_are_kept_in_one_form_and_once(a: Agent, root: Path) -> None:
    paths = ["docs//design.md", "./docs/./design.md", "docs/design.md", ".//plan.md"]
    saved = await a.checkpoint("n", 1, files=paths, root=root)
    assert [file.path for file in saved.files] == ["docs/design.md", "plan.md"]


async def test_names_may_be_strange(bus: Bus, a: Agent, root: Path) -> None:
    strange = ["grün ☃.md", "a b", "-rf", "..a", "...", "new\nline", "back\\slash", "*", "a'\"b", "x" * 255]
    for name in strange:
        (root / name).write_text(name)
    saved = await a.checkpoint("n", 1, files=strange, root=root)
    assert await verified(bus, saved.id, root) == dict.fromkeys(strange, "ok")


# What cannot be referred to


@pytest.mark.one_engine
@each(
    "path",
    [
        "../secret", "docs/../../secret", "docs/../plan.md", "..", "/etc/passwd", "//etc/passwd", "", ".", "./",
        "docs/", "plan.md/", "docs/.", "plan\0.md", "lone \ud800", b"plan.md", None, 5, "x" * 4097, "ü" * 2049,
    ],
)  # fmt: skip
async def test_a_path_that_does_not_name_a_file_below_the_root_is_refused(
    bus: Bus, a: Agent, root: Path, path: Any
) -> None:
    async with refusing(bus, a, UnsafePath) as refused:
        await a.checkpoint("n", 1, files=["plan.md", path], root=root)
    assert "path" in refused.value.facts
    async with a.unit() as unit:
        with pytest.raises(UnsafePath):
            unit.checkpoint("n", 1, files=[path], root=root)
    assert await nothing_saved(bus)


def _symlink_out(root: Path) -> str:
    (root / "link").symlink_to(root.parent / "secret")
    return "link"


def _symlink_in(root: Path) -> str:
    (root / "link").symlink_to("plan.md")
    return "link"


def _symlink_nowhere(root: Path) -> str:
    (root / "link").symlink_to("nowhere")
    return "link"


def _symlink_loop(root: Path) -> str:
    (root / "link").symlink_to("link")
    return "link"


def _symlink_directory(root: Path) -> str:
    (root / "away").symlink_to(root.parent)
    return "away/secret"


def _symlink_deep(root: Path) -> str:
    (root / "docs" / "away").symlink_to(root.parent)
    return "docs/away/root/plan.md"


def _pipe(root: Path) -> str:
    os.mkfifo(root / "pipe")
    return "pipe"


def _socket(root: Path) -> str:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    return "socket"


@pytest.mark.one_engine
@pytest.mark.parametrize(
    "make",
    [
        _symlink_out, _symlink_in, _symlink_nowhere, _symlink_loop, _symlink_directory, _symlink_deep, _pipe, _socket,
        lambda _: "docs",
    ],
    ids=lambda make: make.__name__.strip("_<>"),
)  # fmt: skip
async def test_a_path_that_is_not_a_regular_file_is_refused(
    bus: Bus, a: Agent, root: Path, make: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    path = make(root)
    async with refusing(bus, a, UnsafePath) as refused:
        await a.checkpoint("n", 1, files=["plan.md", path], root=root)
    assert (refused.value.path, refused.value.root) == (path, str(root))
    assert await nothing_saved(bus)


@pytest.mark.one_engine
@each("path", ["missing", "missing/plan.md", "docs/missing", "plan.md/inside", "docs/design.md/x/y"])
async def test_a_file_that_is_not_there_is_named(bus: Bus, a: Agent, root: Path, path: str) -> None:
    async with refusing(bus, a, UnknownFile) as refused:
        await a.checkpoint("n", 1, files=["plan.md", path], root=root)
    assert (refused.value.path, refused.value.root) == (path, str(root))
    assert await nothing_saved(bus)


async def test_the_files_of_an_open_bus_are_refused(engine: Engine, tmp_path: Path) -> None:
    """Closing a descriptor of the database would drop SQLite's locks: commits of others could vanish."""
    home = tmp_path / "project" / "bus"
    async with agentbus.connect(home):
        pass  # made before, and opened again
    async with engine.connect() as other, agentbus.connect(home) as bus, bus.agent("a", type="worker") as a:
        await other.expect("b", type="worker")
        os.link(home / "bus.db", home / "hard-link")
        for path in ("bus/bus.db", "bus/bus.db-wal", "bus/bus.db-shm", "bus/hard-link"):
            with pytest.raises(UnsafePath, match="part of a bus"):
                await a.checkpoint("n", 1, files=[path], root=tmp_path / "project")
            with pytest.raises(UnsafePath, match="part of a bus"):
                await other.checkpoints.save("b", "n", 1, files=[path], root=tmp_path / "project")
        os.unlink(home / "hard-link")
    async with engine.connect() as other:
        saved = await other.checkpoints.save("b", "n", 1, files=["bus/bus.db"], root=tmp_path / "project")
        assert saved.files[0].size > 0


@pytest.mark.one_engine
@each("files", ["plan.md", b"plan.md", Path("plan.md"), None, 5])
async def test_one_path_is_not_a_list_of_paths(bus: Bus, a: Agent, files: Any) -> None:
    async with refusing(bus, a, InvalidInput):
        await a.checkpoint("n", 1, files=files)


@pytest.mark.one_engine
@each("root", ["", "nul\0", b"bytes", 5, ["list"]])
async def test_a_root_that_is_no_path_is_refused(bus: Bus, a: Agent, root: Any) -> None:
    async with refusing(bus, a, InvalidInput):
        await a.checkpoint("n", 1, files=["plan.md"], root=root)
    with pytest.raises(InvalidInput):
        await bus.checkpoints.verify(1, root)


@pytest.mark.one_engine
async def test_a_root_that_is_no_directory_is_named(bus: Bus, a: Agent, root: Path) -> None:
    for place in (root / "plan.md", root / "missing"):
        async with refusing(bus, a, UnreadableFile) as refused:
            await a.checkpoint("n", 1, files=["x"], root=place)
        assert refused.value.root == str(place)


@pytest.mark.one_engine
async def test_a_missing_working_directory_matters_only_for_relative_paths(
    bus: Bus, a: Agent, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = root / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    await a.checkpoint("n", 1)
    await a.checkpoint("n", 1, files=["plan.md"], root=root)
    for place in (None, "docs"):
        with pytest.raises(UnreadableFile):
            await a.checkpoint("n", 1, files=["plan.md"], root=place)
    with pytest.raises(UnreadableFile):
        await bus.checkpoints.verify(1)


@pytest.mark.one_engine
async def test_there_is_a_limit_to_the_number_of_files(bus: Bus, a: Agent, root: Path) -> None:
    async with refusing(bus, a, OutOfRange) as refused:
        await a.checkpoint("n", 1, files=[f"file-{n}" for n in range(10_001)], root=root)
    assert refused.value.value == 10_001
    for n in range(1_000):
        (root / f"file-{n}").write_text(str(n))
    saved = await a.checkpoint("n", 1, files=(f"file-{n}" for n in range(1_000)), root=root)
    assert (await bus.checkpoints.list()).items[0].files == 1_000
    assert {check.status for check in await bus.checkpoints.verify(saved.id, root)} == {"ok"}


# Verifying


@pytest.mark.one_engine
async def test_verifying_reports_changed_and_missing_files(bus: Bus, a: Agent, root: Path) -> None:
    names = ["same", "longer", "rewritten", "gone", "linked", "linked-inside", "directory", "pipe", "replaced"]
    for name in names:
        (root / name).write_text("content")
    saved = await a.checkpoint("n", 1, files=[*names, "docs/design.md"], root=root)
    (root / "longer").write_text("content and more")
    (root / "rewritten").write_text("CONTENT")
    for name in ("gone", "linked", "linked-inside", "directory", "pipe", "replaced"):
        (root / name).unlink()
    (root / "linked").symlink_to(root.parent / "secret")
    (root / "linked-inside").symlink_to("same")
    (root / "directory").mkdir()
    os.mkfifo(root / "pipe")
    (root / "replaced").write_text("content")
    (root / "docs").rename(root / "moved")
    (root / "docs").symlink_to("moved")
    assert await verified(bus, saved.id, root) == {
        "same": "ok",
        "longer": "changed",
        "rewritten": "changed",
        "gone": "vanished",
        "linked": "outside",
        "linked-inside": "outside",
        "directory": "changed",
        "pipe": "changed",
        "replaced": "ok",
        "docs/design.md": "outside",
    }
    (root / "docs").unlink()
    assert (await verified(bus, saved.id, root))["docs/design.md"] == "vanished"
    (root / "docs").write_text("a file now")
    assert (await verified(bus, saved.id, root))["docs/design.md"] == "vanished"


@pytest.mark.one_engine
async def test_an_unreadable_file_is_reported_as_neither_changed_nor_missing(
    bus: Bus, a: Agent, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = await a.checkpoint("n", 1, files=["plan.md", "empty"], root=root)
    original = os.open

    def opening(path: Any, *args: Any, **options: Any) -> int:
        # Tests may run as root, whom no permission keeps out.
        if path == "plan.md":
            raise PermissionError(13, "Permission denied")
        return original(path, *args, **options)

    monkeypatch.setattr(os, "open", opening)
    assert await verified(bus, saved.id, root) == {"plan.md": "unreadable", "empty": "ok"}
    async with refusing(bus, a, UnreadableFile) as refused:
        await a.checkpoint("n", 1, files=["plan.md"], root=root)
    assert refused.value.reason == "Permission denied"


@pytest.mark.one_engine
async def test_only_a_checkpoint_can_be_verified(bus: Bus, a: Agent, root: Path) -> None:
    with pytest.raises(UnknownCheckpoint):
        await bus.checkpoints.verify(99, root)
    saved = await a.checkpoint("n", 1, files=["plan.md"], root=root)
    with pytest.raises(UnreadableFile):
        await bus.checkpoints.verify(saved, root / "missing")
    assert await bus.checkpoints.verify(await a.checkpoint("none", 1), root / "missing") == []


@pytest.mark.one_engine
async def test_no_descriptor_is_left_open(a: Agent, bus: Bus, root: Path) -> None:
    (root / "link").symlink_to("plan.md")
    before = len(os.listdir("/dev/fd"))
    for path in ("docs/design.md", "docs/missing", "link", "docs"):
        for _ in range(5):
            with suppress(UnsafePath, UnknownFile):
                saved = await a.checkpoint("n", 1, files=[path], root=root)
                await bus.checkpoints.verify(saved, root)
    assert len(os.listdir("/dev/fd")) == before
