"""The log is synced after the lock was released: counters in the lock file say who must sync before it returns."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from agentbus.core.clock import Now, SystemClock
from agentbus.engine.sqlite import lock as locks
from agentbus.engine.sqlite import paths, wal
from agentbus.engine.sqlite.blocking import BlockingSQLite
from agentbus.engine.sqlite.lock import CommitCounters, FileLock
from agentbus.engine.sqlite.read_only import ReadOnlySQLite
from agentbus.errors import DiskFull, LogNotSynced, OutcomeUnknown, StoreError
from agentbus.operations.agents import RegisterRequest, register
from agentbus.operations.processes import EnterRequest, HeartbeatRequest, enter, heartbeat
from agentbus.operations.protocol import Actor, Op, Query
from agentbus.operations.receive import Claim, ClaimRequest, claim
from agentbus.operations.rows import Profile
from agentbus.operations.send import send
from agentbus.operations.types import define
from tests.support.cases import each
from tests.support.writing import message, wanted

NUMBERS = 32
"""Where the numbers begin in the lock file: three of 8 bytes, each followed by its check value."""


def is_defined(name: str, now: Now) -> Op[bool]:
    return bool((yield Query("type_get", ("message", name))))


class Disk:
    """The syncs of the log by a thread, and its rewrites."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.syncs = 0
        self.rewrites = 0
        self.fails: set[str] = set()
        """Those of ``sync`` and ``rewrite`` that report EIO."""
        self.meanwhile: Callable[[], object] | None = None
        """Runs once, before the next sync: what other processes do while this one waits for its disk."""
        sync, rewrite = wal._sync, wal._rewrite_in_place

        def watched_sync(file: int) -> None:
            self.syncs += 1
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None:
                meanwhile()
            if "sync" in self.fails:
                raise OSError(errno.EIO, "Input/output error")
            sync(file)

        def watched_rewrite(path: str) -> None:
            self.rewrites += 1
            if "rewrite" in self.fails:
                raise OSError(errno.EIO, "Input/output error")
            rewrite(path)

        monkeypatch.setattr(wal, "_sync", watched_sync)
        monkeypatch.setattr(wal, "_rewrite_in_place", watched_rewrite)

    def during(self, action: Callable[[], object]) -> tuple[int, int]:
        """Return the syncs and rewrites of an action."""
        before = self.syncs, self.rewrites
        action()
        return self.syncs - before[0], self.rewrites - before[1]


class Place:
    """A bus, opened by two processes, as it were: each has its own descriptors and its own memory."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.home = paths.find(directory)
        self._stack = stack
        self.one = self.open()
        self.other = self.open()
        self.descriptor = os.open(self.home.lock, os.O_RDWR)
        stack.callback(os.close, self.descriptor)
        self.counters = CommitCounters(self.descriptor)

    def open(self) -> BlockingSQLite:
        return self._stack.enter_context(
            closing(BlockingSQLite(self.home, durability="disk", clock=SystemClock(), lock_timeout=10))
        )

    def numbers(self) -> bytes:
        return os.pread(self.descriptor, 48, NUMBERS)

    def write(self, name: str = "x") -> None:
        self.one.write(define, wanted(name))

    def read(self, name: str = "x") -> bool:
        """Read in the other process."""
        return self.other.read(is_defined, name)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def place(tmp_path: Path, disk: Disk) -> Iterator[Place]:
    with ExitStack() as stack:
        place = Place(tmp_path / "bus", stack)
        place.write("first")
        place.read()
        yield place
        disk.fails.clear()


# The numbers


def flipped(place: Place, *fields: int) -> None:
    for field in fields:
        byte = os.pread(place.descriptor, 1, NUMBERS + field * 16) or b"\0"
        os.pwrite(place.descriptor, bytes([byte[0] ^ 0x40]), NUMBERS + field * 16)


DAMAGES: dict[str, Callable[[Place], object]] = {
    "announced": lambda place: flipped(place, 0),
    "synced": lambda place: flipped(place, 1),
    "failures": lambda place: flipped(place, 2),
    "all": lambda place: flipped(place, 0, 1, 2),
    "zeros": lambda place: os.pwrite(place.descriptor, bytes(48), NUMBERS),
    "noise": lambda place: os.pwrite(place.descriptor, bytes(range(48)), NUMBERS),
    "missing": lambda place: os.truncate(place.descriptor, NUMBERS),
    "truncated": lambda place: os.truncate(place.descriptor, NUMBERS + 20),
    "torn": lambda place: os.pwrite(place.descriptor, (7).to_bytes(8, "little"), NUMBERS),
    "a-check-value-alone": lambda place: os.truncate(place.descriptor, NUMBERS + 8),
    "nothing-at-all": lambda place: os.truncate(place.descriptor, 0),
    "synced-torn": lambda place: os.pwrite(place.descriptor, place.numbers()[:8], NUMBERS + 16),
    "more-synced-than-announced": lambda place: place.counters.set_synced(2**40),
}


@each("damage", DAMAGES)
def test_damaged_numbers_only_cause_another_sync(place: Place, disk: Disk, damage: str) -> None:
    """A read that meets them while the sender still syncs does not return before the disk has what it found."""
    found: list[tuple[bool, int]] = []

    def read() -> None:
        DAMAGES[damage](place)
        before = disk.syncs
        found.append((place.read(damage), disk.syncs - before))

    disk.meanwhile = read
    place.write(damage)
    ((is_there, syncs),) = found
    assert is_there
    assert syncs >= 1
    place.read()
    assert disk.during(place.read) == (0, 0), "they are whole again"
    assert disk.during(lambda: place.write(f"{damage}-later"))[0] >= 1, "the next promise is synced"


@each("damage", DAMAGES)
def test_a_process_that_finds_damaged_numbers_on_opening_waits_for_the_disk(
    place: Place, disk: Disk, damage: str
) -> None:
    found: list[tuple[bool, int]] = []

    def read() -> None:
        DAMAGES[damage](place)
        late = place.open()
        before = disk.syncs + disk.rewrites
        found.append((late.read(is_defined, damage), disk.syncs + disk.rewrites - before))

    disk.meanwhile = read
    place.write(damage)
    ((is_there, synced),) = found
    assert is_there
    assert synced >= 1
    place.write(f"{damage}-later")


@each("damage", DAMAGES)
def test_numbers_damaged_at_rest_are_whole_after_the_next_read(place: Place, disk: Disk, damage: str) -> None:
    DAMAGES[damage](place)
    place.read()
    place.write(damage)
    place.read()
    assert disk.during(place.read) == (0, 0)
    announced, synced, _ = place.counters.read()
    assert announced == synced


@pytest.mark.parametrize("is_open", [True, False])
def test_numbers_older_than_the_log_promise_too_little_at_most(place: Place, disk: Disk, is_open: bool) -> None:
    """As after a power cut: the numbers are never synced, so an old page of the lock file may be left."""
    old = place.numbers()
    for name in "abc":
        place.write(name)
    os.pwrite(place.descriptor, old, NUMBERS)
    if not is_open:
        place.one.close()
        place.one = place.open()
    found: list[int] = []
    disk.meanwhile = lambda: found.append(disk.during(lambda: place.read("d"))[0])
    assert disk.during(lambda: place.write("d"))[0] >= 1
    assert found[0] >= 1, "nor may the other process rely on what it remembers"


def test_after_a_loss_new_numbers_are_above_all_that_processes_remember(place: Place) -> None:
    for name in "abc":
        place.write(name)
    _, synced, _ = place.counters.read()
    flipped(place, 0)
    assert place.counters.announce() > synced + 2**31


def test_a_number_without_a_commit_is_synced_once(place: Place, disk: Disk) -> None:
    """Its process was killed between announcing and COMMIT."""
    place.counters.announce()
    assert disk.during(place.read) == (1, 0)
    assert disk.during(place.read) == (0, 0)


def test_a_commit_in_progress_is_not_published_by_a_read(place: Place, disk: Disk) -> None:
    """It may not be in the log yet while its process holds the lock: a later read syncs again."""
    holder = FileLock(place.home.lock, 10)
    with holder.held():
        number = place.counters.announce()
        assert disk.during(place.read) == (1, 0)
        assert place.counters.read()[:2] == (number, number - 1)
        assert disk.during(place.read) == (1, 0)
    assert disk.during(place.read) == (1, 0)
    assert place.counters.read()[:2] == (number, number)
    holder.close()


# What is not synced is not returned


def reads(place: Place) -> dict[str, Callable[[], object]]:
    read_only = ReadOnlySQLite(place.home, "a test", clock=SystemClock(), lock_timeout=10)
    return {"blocking": place.read, "read-only": lambda: read_only.read(is_defined, "x")}


@each("kind", ["blocking", "read-only"])
def test_a_read_waits_for_a_sync_of_what_it_may_have_seen(place: Place, disk: Disk, kind: str) -> None:
    read = reads(place)[kind]
    assert disk.during(read) == (0, 0), "everything is synced"
    found: list[tuple[int, int]] = []
    disk.meanwhile = lambda: found.append(disk.during(read))
    place.write(kind)
    assert found == [(1, 0)]
    assert disk.during(read) == (0, 0)


def test_a_sender_whose_rows_another_process_has_synced_need_not_publish_less(place: Place, disk: Disk) -> None:
    disk.meanwhile = place.read
    place.write("new")
    announced, synced, failures = place.counters.read()
    assert (announced, failures) == (synced, 0)


def actors(place: Place) -> tuple[Actor, ClaimRequest]:
    process = place.one.write(enter, EnterRequest("host", os.getpid(), "", None)).process
    sender = place.one.write(register, RegisterRequest("a", "worker", process, Profile()))
    receiver = place.other.write(register, RegisterRequest("b", "worker", process, Profile()))
    to = ClaimRequest(Actor("b", receiver.epoch), (), (receiver.mailbox,), (), 1, 60_000)
    return Actor("a", sender.epoch), to


def test_a_claim_waits_for_a_sync_of_the_message_it_returns(place: Place, disk: Disk) -> None:
    sender, request = actors(place)
    found: list[Any] = []
    waited: list[tuple[int, int]] = []
    disk.meanwhile = lambda: waited.append(disk.during(lambda: found.append(place.other.write(claim, request))))
    place.one.write(send, message(sender, "b"))
    (claimed,) = found
    assert isinstance(claimed, Claim)
    assert len(claimed.rows) == 1
    assert waited == [(1, 0)]


def test_a_claim_of_what_is_synced_syncs_nothing(place: Place, disk: Disk) -> None:
    sender, request = actors(place)
    place.one.write(send, message(sender, "b"))
    assert disk.during(lambda: place.other.write(claim, request)) == (0, 0)


def test_a_call_that_returns_no_rows_does_not_wait(place: Place, disk: Disk) -> None:
    place.counters.announce()
    assert disk.during(lambda: place.other.write(heartbeat, HeartbeatRequest(0, ()))) == (0, 0)


def test_a_promise_that_changes_nothing_still_waits_for_what_it_relies_on(place: Place, disk: Disk) -> None:
    found: list[tuple[int, int]] = []
    disk.meanwhile = lambda: found.append(disk.during(lambda: place.other.write(define, wanted("new"))))
    place.write("new")
    assert found[0][0] == 1


# A read keeps the lock as it was


def test_a_read_while_writes_are_paused_does_not_release_the_lock(place: Place, disk: Disk) -> None:
    with place.one.pause_writes():
        place.counters.announce()
        assert disk.during(lambda: place.one.read(is_defined, "x")) == (1, 0)
        assert locks.holder(place.home.lock) == str(os.getpid())
    assert locks.holder(place.home.lock) is None


def test_an_interrupted_read_leaves_the_lock_free(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at the moment when it has looked whether the lock is free."""

    def interrupt(_: FileLock) -> None:
        raise KeyboardInterrupt

    place.counters.announce()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(FileLock, "_sign", interrupt)
        place.read()
    assert locks.holder(place.home.lock) is None
    place.read()


def traced(function: Callable[..., object], opcode: int, action: Callable[[], object]) -> Callable[[], bool]:
    """Run ``action`` once before that opcode of a function, as another thread may. Return a function that ends this and
    returns True if it has run."""
    code = getattr(function, "__code__")  # noqa: B009
    left = opcode

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                action()
        return trace

    def end() -> bool:
        sys.settrace(before)
        return left <= 0

    before = sys.gettrace()
    sys.settrace(trace)
    return end


def test_a_lock_that_another_thread_releases_meanwhile_hides_no_commit(place: Place) -> None:
    """The thread of a read asks while that of the writer holds the lock; between any two of its steps, it does not."""
    number = place.counters.announce()
    reached = 0
    while reached < 1000:
        lock = FileLock(place.home.lock, 10)
        lock.acquire()
        end = traced(CommitCounters.unsynced, reached + 1, lock.release)
        try:
            found = lock.counters.unsynced()
        finally:
            has_run = end()
        lock.close()
        assert found == number, f"opcode {reached + 1}"
        if not has_run:
            break
        reached += 1
    assert 10 < reached < 1000


# Syncs that fail


def test_after_a_failed_sync_the_log_is_rewritten_before_the_caller_is_told(place: Place, disk: Disk) -> None:
    disk.fails = {"sync"}

    def write() -> None:
        with pytest.raises(OutcomeUnknown):
            place.write("new")

    assert disk.during(write)[1] == 1
    disk.fails.clear()
    assert place.read("new"), "a retry with the same id finds it"
    assert disk.during(lambda: place.write("later")) == (1, 0), "the log is sound again"


def test_a_log_that_cannot_be_rewritten_promises_nothing_until_it_can(place: Place, disk: Disk) -> None:
    disk.fails = {"sync", "rewrite"}
    with pytest.raises(OutcomeUnknown):
        place.write("new")
    for _ in range(2):
        with pytest.raises(LogNotSynced):
            place.write("later")
    disk.fails.clear()
    assert disk.during(lambda: place.write("later"))[1] == 1
    assert disk.during(lambda: place.write("last")) == (1, 0)


def test_another_process_rewrites_the_log_too_before_it_promises(place: Place, disk: Disk) -> None:
    disk.fails = {"sync"}
    with pytest.raises(OutcomeUnknown):
        place.write("new")
    disk.fails.clear()
    assert disk.during(lambda: place.other.write(define, wanted("a")))[1] == 1
    assert disk.during(lambda: place.other.write(define, wanted("b"))) == (1, 0)


def test_a_damaged_number_of_failures_causes_a_rewrite(place: Place, disk: Disk) -> None:
    place.counters.count_failure()
    place.write("a")
    place.read()
    flipped(place, 2)
    assert disk.during(lambda: place.write("b"))[1] == 1
    assert disk.during(lambda: place.write("c")) == (1, 0)


def test_a_failure_of_another_process_during_a_sync_is_noticed(place: Place, disk: Disk) -> None:
    """The sync returned no error, but the pages that the other one's error was about may be lost."""
    disk.meanwhile = place.counters.count_failure
    assert disk.during(place.write)[1] == 1


def test_a_read_that_cannot_be_synced_returns_nothing(place: Place, disk: Disk) -> None:
    place.counters.announce()
    disk.fails = {"sync", "rewrite"}
    with pytest.raises(LogNotSynced):
        place.read()
    disk.fails = {"sync"}
    assert disk.during(place.read)[1] == 1


def test_a_read_whose_sync_failed_returns_what_was_rewritten(place: Place, disk: Disk) -> None:
    place.counters.announce()
    disk.fails = {"sync"}
    assert disk.during(lambda: place.read("first"))[1] == 1
    assert place.read("first")


def test_a_claim_that_cannot_be_synced_raises(place: Place, disk: Disk) -> None:
    sender, request = actors(place)
    raised: list[type] = []

    def claim_now() -> None:
        disk.fails = {"sync", "rewrite"}
        with pytest.raises(OutcomeUnknown) as caught:
            place.other.write(claim, request)
        raised.append(caught.type)

    disk.meanwhile = claim_now
    with pytest.raises(OutcomeUnknown):
        place.one.write(send, message(sender, "b"))
    assert raised == [OutcomeUnknown]


def test_a_read_only_bus_cannot_repair_and_says_so(place: Place, disk: Disk) -> None:
    read = reads(place)["read-only"]
    place.counters.announce()
    disk.fails = {"sync"}
    with pytest.raises(LogNotSynced):
        read()


# Logs that are found


def test_a_process_does_not_vouch_for_what_it_found_in_the_log(place: Place, disk: Disk) -> None:
    place.counters.announce()
    late = place.open()
    assert disk.during(lambda: late.write(define, wanted("a")))[1] == 1
    assert disk.during(lambda: late.write(define, wanted("b"))) == (1, 0)


def test_a_process_does_not_checkpoint_what_it_found_before_it_is_rewritten(place: Place, disk: Disk) -> None:
    place.counters.announce()
    late = place.open()
    assert late._runner is not None
    assert late._runner.checkpoint(truncate=False) is True
    assert disk.rewrites == 1


def test_a_log_that_cannot_be_synced_is_rewritten_before_it_is_checkpointed(place: Place, disk: Disk) -> None:
    assert place.one._runner is not None
    disk.fails = {"sync", "rewrite"}
    assert isinstance(place.one._runner.checkpoint(truncate=False), LogNotSynced)
    disk.fails = {"sync"}
    assert place.one._runner.checkpoint(truncate=False) is True
    disk.fails.clear()
    place.write("a")
    disk.fails = {"sync"}
    assert disk.during(lambda: place.one._runner and place.one._runner.checkpoint(truncate=False))[1] == 1


def test_what_another_process_has_published_needs_no_rewrite(place: Place, disk: Disk) -> None:
    place.counters.announce()
    late = place.open()
    place.read()
    assert disk.during(lambda: late.write(define, wanted("a"))) == (1, 0)


# Numbers that cannot be written


@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, StoreError)]
)
def test_a_commit_that_cannot_be_announced_is_rolled_back(
    place: Place, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch, pytest.raises(error) as caught:
        patch.setattr(CommitCounters, "announce", fail)
        place.write("new")
    assert caught.type is error
    assert not place.read("new")
    place.other.write(define, wanted("elsewhere"))
    place.write("new")
    assert place.read("new")


def test_a_claim_whose_numbers_cannot_be_read_has_an_unknown_outcome(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is committed: an error that says otherwise would be wrong."""
    sender, request = actors(place)
    place.one.write(send, message(sender, "b"))
    pread = os.pread

    def fail(file: int, size: int, offset: int) -> bytes:
        if offset <= NUMBERS and offset + size == NUMBERS + 48:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(file, size, offset)

    with monkeypatch.context() as patch, pytest.raises(OutcomeUnknown):
        patch.setattr(os, "pread", fail)
        place.other.write(claim, request)
    assert place.other.write(claim, request).rows == [], "it is leased"


def test_a_synced_number_that_cannot_be_written_costs_another_sync_only(
    place: Place, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CommitCounters._store

    def fail(counters: CommitCounters, field: int, number: int, check: int) -> None:
        if field:
            raise OSError(errno.ENOSPC, "No space left on device")
        store(counters, field, number, check)

    with monkeypatch.context() as patch:
        patch.setattr(CommitCounters, "_store", fail)
        place.write("new")
    assert disk.during(place.read) == (1, 0)
    assert disk.during(place.read) == (0, 0)
