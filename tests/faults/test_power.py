"""A power cut at any moment of a recorded run, on a simulated disk that lost unsynced writes."""

import asyncio
import os
import random
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest

import agentbus
from tests.faults.power import Disk, Fate
from tests.faults.rows import integrity
from tests.support.figures import Figure, Scale
from tests.support.processes import Team
from tests.support.tracing import Step, recording, require_strace, steps

SEED = 20_261_116
FATES: tuple[Fate | None, ...] = ("dropped", "kept", "torn", None, None, None)


class Image:
    """The bus after the power cut."""

    def __init__(self, files: dict[str, bytes], place: Path) -> None:
        self.bus = place / "bus"
        self.bus.mkdir(parents=True)
        self.there = "bus/bus.db" in files and len(files["bus/bus.db"]) > 0
        for name, content in files.items():
            if name.startswith("bus/bus.db"):
                (place / name).write_bytes(content)
        # Whatever is left of the shared memory means nothing.
        (self.bus / "bus.db-shm").write_bytes(os.urandom(32768))
        self.sent: set[str] = set()
        self.units = 0
        self.saved: set[str] = set()
        self.last = 0

    def remove(self) -> None:
        shutil.rmtree(self.bus.parent)

    def read(self) -> str:
        """Return ``ok``, or the damage that the database reports."""
        with closing(sqlite3.connect(self.bus / "bus.db", isolation_level=None)) as connection:

            def ask(sql: str) -> list[tuple[Any, ...]]:
                return connection.execute(sql).fetchall()

            if not ask("PRAGMA user_version")[0][0]:
                return str(ask("PRAGMA integrity_check")[0][0])
            self.sent = {name for (name,) in ask("SELECT message_id FROM messages")}
            ((count, self.last),) = ask("SELECT count(*), coalesce(max(id), 0) FROM messages")
            self.units = sum(int(n) for (n,) in ask("SELECT value FROM state WHERE key = 'units'"))
            self.saved = {name for (name,) in ask("SELECT json_extract(snapshot, '$.at') FROM checkpoints")}
            pairs = Counter(name.rpartition(".")[0] for name in self.sent if name.count(".") == 3)
            if set(pairs.values()) - {2} or len(pairs) != self.units:
                return f"{self.units} units were counted, and of them there is {pairs}"
            if count != self.last:
                return f"{count} messages, but the last is {self.last}: not a prefix of what was committed"
        return integrity(self.bus)


def told(step: Step) -> list[str] | None:
    """Return what the worker reported with this call, or None."""
    if step.call == "write" and step.rest.startswith(b"(1"):
        return step.texts[-1].decode().split()
    return None


async def resume(bus: Path) -> None:
    async with agentbus.connect(bus) as opened, opened.agent("clerk", type="worker", takeover=True) as clerk:
        await clerk.send("clerk", "note", "after the power cut")
        assert await clerk.receive(timeout=0) is not None


@pytest.mark.slow
@pytest.mark.fault(3)
@pytest.mark.parametrize("durability", ["disk", "process"])
def test_after_a_power_cut_at_any_moment_the_bus_is_intact_and_has_every_durable_write(
    short: Path, team: Team, figure: Figure, scale: Scale, durability: Literal["disk", "process"]
) -> None:
    require_strace()
    chance = random.Random(seed := scale.seed(SEED))
    trace, root = short / "trace", short / "root"
    root.mkdir()
    team.start("worker_power", root / "bus", durability, scale(3, 12), before=recording(trace)).finish(120)

    disk = Disk(root)
    done: list[list[str]] = []
    wanted = scale(20, 1000, 20_000)
    recorded = list(steps(trace))
    counting = Disk(root)
    changing = sum(counting.take(step) for step in recorded if told(step) is None)
    missing: list[str] = []
    wrong: list[str] = []
    images = points = shortened = 0
    for number, step in enumerate(recorded):
        if (words := told(step)) is not None:
            done.append(words)
            continue
        if not disk.take(step):
            continue
        points += 1
        while images < wanted * points / changing:
            image = Image(disk.cut(chance, fate := FATES[images % len(FATES)]), short / f"image-{images}")
            images += 1
            found = "ok"
            if image.there:
                try:
                    found = image.read()
                except sqlite3.Error as error:
                    found = f"{type(error).__name__}: {error}"
            if found != "ok":
                wrong.append(f"seed {seed}, call {number} ({step.call}), {fate}: {found}")
            absent = [words for words in done if not _is_there(words, image)]
            shortened += bool(absent)
            if durability == "disk":
                missing += [f"seed {seed}, call {number}, {fate}: {words}" for words in absent]
            if images % 20 == 0 and found == "ok":
                asyncio.run(resume(image.bus))
            image.remove()
    figure(
        images=images,
        calls=points,
        acknowledged=len(done),
        corrupt=len(wrong),
        lost=len(missing),
        note=f"durability {durability}: {shortened} images lack the last that was acknowledged",
    )
    assert images >= wanted
    assert len(done) > 50
    assert durability == "disk" or shortened > images // 10, (
        "nothing was ever lost on this disk; this test proves nothing"
    )
    assert not wrong, f"{len(wrong)} of {images}: {wrong[:3]}"
    assert not missing, f"{len(missing)} lost: {missing[:3]}"


def _is_there(words: list[str], image: Image) -> bool:
    what, name = words
    if what == "sent":
        return name in image.sent
    return f"{name}.second" in image.sent if what == "unit" else name in image.saved


@pytest.mark.slow
@pytest.mark.fault(7)
@pytest.mark.parametrize(
    ("pages", "when", "wanted"),
    [(100_000, "6+5", 400), (20, "9+2", 1500)],
    ids=["at a commit", "while the log is moved"],
)
def test_writes_acknowledged_after_a_failed_fsync_survive_a_power_cut(
    short: Path, team: Team, figure: Figure, scale: Scale, pages: int, when: str, wanted: int
) -> None:
    """The system has forgotten what that one should have written: nothing may rely on it any more."""
    require_strace()
    chance = random.Random(seed := scale.seed(SEED + 1))
    trace, root = short / "trace", short / "root"
    root.mkdir()
    team.start("worker_calls", "killed", root / "bus", 0, 4, before=recording(trace)).finish(60)
    before = list(steps(trace))
    failing = recording(trace, f"fdatasync:error=EIO:when={when}")
    worker = team.start("worker_calls", "failing", root / "bus", 4, scale(28, 200), pages, "thread", before=failing)
    worker.wait(120)
    disk = Disk(root)
    sent: set[str] = set()
    images = failed = 0
    lost: list[str] = []
    for number, step in enumerate(recorded := before + list(steps(trace))):
        if (words := told(step)) is not None:
            sent.update({f"n-{words[1]}"} if words[0] == "sent" or words[2:3] == ["sent"] else ())
        elif disk.take(step):
            failed += step.result < 0
            if failed and chance.random() < scale(15, wanted) / len(recorded):
                image = Image(disk.cut(chance, fate := chance.choice(FATES)), short / f"image-{images}")
                images += 1
                assert image.read() == "ok", f"seed {seed}, call {number}, {fate}"
                lost += [f"seed {seed}, call {number}, {fate}: {name}" for name in sent - image.sent]
                image.remove()
    moved = "the log was moved" if pages < 1000 else "the log was not moved"
    figure(
        f"power cut after a failed fsync, {moved}", failed=failed, images=images, acknowledged=len(sent), lost=len(lost)
    )
    assert failed >= 2, "hardly an fsync failed; this test proves little"
    assert len(sent) >= 20
    assert not lost, f"{len(lost)} lost: {lost[:3]}"


@pytest.mark.slow
@pytest.mark.fault(28)
@pytest.mark.parametrize("guard", ["guarded", "unguarded"])
def test_what_another_process_was_given_before_the_sync_survives_a_power_cut(
    short: Path, team: Team, figure: Figure, scale: Scale, guard: str
) -> None:
    require_strace()
    chance = random.Random(seed := scale.seed(SEED + 2))
    trace, root = short / "trace", short / "root"
    root.mkdir()
    worker = team.start("worker_early", root / "bus", scale(10, 120), guard, before=recording(trace), preloaded=False)
    assert worker.wait(240) == 0, worker.errors()[-2000:]
    disk = Disk(root)
    given: set[str] = set()
    lost: list[str] = []
    images = early = 0
    sent: set[str] = set()
    for number, step in enumerate(recorded := list(steps(trace))):
        if (words := told(step)) is not None:
            if words[0] in {"sent", "received", "read", "answered"}:
                given.add(words[1])
                sent |= {words[1]} if words[0] == "sent" else set()
                early += words[0] == "answered" and f"s-{words[1].partition('-')[2]}" not in sent
        elif disk.take(step) and given and chance.random() < scale(20, 240) / len(recorded) * 4:
            image = Image(disk.cut(chance, fate := FATES[images % len(FATES)]), short / f"image-{images}")
            images += 1
            assert image.read() == "ok", f"seed {seed}, call {number}, {fate}"
            lost += [f"seed {seed}, call {number}, {fate}: {name}" for name in given - image.sent]
            image.remove()
    if guard == "guarded":
        figure(
            f"power cut before a sync: {early} answered before their send returned",
            images=images, acknowledged=len(given), lost=len(lost),
        )  # fmt: skip
        assert not lost, f"{len(lost)} lost: {lost[:3]}"
        assert early, "nothing was answered early; this test proves nothing"
    else:
        assert lost, "without the guard nothing is lost either; this test proves nothing"
