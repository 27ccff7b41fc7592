"""The write lock: one holder at a time, in turn, with a deadline; nothing of it survives a fork."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentbus.engine.sqlite import lock as locks
from agentbus.engine.sqlite.lock import FileLock, _Waiter
from agentbus.errors import LockTimeout, NotWritable

HOLD = """
import sys
from pathlib import Path
from agentbus.engine.sqlite.lock import FileLock
lock = FileLock(Path(sys.argv[1]), 10)
lock.acquire()
print("held", flush=True)
sys.stdin.readline()
lock.release()
print("released", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    # Those of the test before may still be on their way out.
    assert eventually(lambda: helpers() == [])
    return tmp_path / "bus.lock"


@pytest.fixture
def lock(path: Path) -> Iterator[FileLock]:
    lock = FileLock(path, 10)
    yield lock
    lock.close()


@contextmanager
def another(path: Path, script: str = HOLD) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until it is told a line."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert say(process) == "held"
        yield process
    finally:
        process.kill()
        process.wait()
        # A forked child reads from the same pipe: closing it ends the child too.
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def say(process: subprocess.Popen[str], line: str | None = None) -> str:
    """Tell a process something, and hear its next line."""
    assert process.stdin is not None
    assert process.stdout is not None
    if line is not None:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
    return process.stdout.readline().strip()


def is_free(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(fd)


@contextmanager
def taken(path: Path) -> Iterator[Callable[[], None]]:
    """Hold the lock through a descriptor of its own; the function releases it."""
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield lambda: fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "agentbus-lock"]


def test_it_is_held_inside_the_block_and_free_after_it(lock: FileLock, path: Path) -> None:
    with lock.held():
        assert not is_free(path)
    assert is_free(path)


def test_a_block_within_a_block_keeps_it(lock: FileLock, path: Path) -> None:
    with lock.held():
        with lock.held(0):
            assert not is_free(path)
        assert not is_free(path)
    assert is_free(path)


def test_looking_whether_it_is_free_changes_nothing(lock: FileLock, path: Path) -> None:
    assert lock.is_free()
    assert is_free(path)
    with lock.held():
        assert lock.is_free(), "no other process holds it"
        assert not is_free(path)
    with taken(path):
        assert not lock.is_free()
        assert not is_free(path)
    assert is_free(path)


def test_it_is_released_when_the_block_raises(lock: FileLock, path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lock.held():
        _ = 1 / 0
    assert is_free(path)


def test_without_contention_no_thread_is_started(lock: FileLock) -> None:
    with lock.held():
        assert helpers() == []


def test_the_holder_is_named_by_its_pid(lock: FileLock, path: Path) -> None:
    assert lock.holder() is None
    with lock.held():
        assert lock.holder() == os.getpid()
    with another(path) as process:
        assert lock.holder() == process.pid


def test_a_long_pid_leaves_nothing_behind_for_a_short_one(lock: FileLock, path: Path) -> None:
    path.write_bytes(b"4194303999999\n")
    with lock.held():
        assert lock.holder() == os.getpid()


def test_a_contender_gets_it_as_soon_as_it_is_free(lock: FileLock, path: Path) -> None:
    with another(path) as process:
        got = threading.Event()

        def contend() -> None:
            with lock.held():
                got.set()

        contender = threading.Thread(target=contend)
        contender.start()
        assert eventually(lambda: len(helpers()) == 1)
        assert not got.is_set()
        assert say(process, "release") == "released"
        contender.join(10)
        assert got.is_set()
        assert is_free(path)


def test_a_timeout_names_the_process_that_holds_it(lock: FileLock, path: Path) -> None:
    with another(path) as process:
        with pytest.raises(LockTimeout) as caught:
            lock.acquire(0.05)
        assert caught.value.pid == process.pid
        assert caught.value.waited < 10
        assert caught.value.path == str(path)
        assert str(process.pid) in str(caught.value)
        assert caught.value.transient


def test_a_lock_of_its_own_has_its_own_timeout(path: Path) -> None:
    impatient = FileLock(path, 0.05)
    with another(path), pytest.raises(LockTimeout):
        impatient.acquire()
    impatient.close()


def test_after_a_timeout_it_can_be_taken_again(lock: FileLock, path: Path) -> None:
    with another(path) as process:
        with pytest.raises(LockTimeout):
            lock.acquire(0.05)
        say(process, "release")
        with lock.held():
            assert not is_free(path)
    assert eventually(lambda: is_free(path))


def test_a_grant_that_comes_too_late_is_released_at_once(lock: FileLock, path: Path) -> None:
    with another(path) as process:
        with pytest.raises(LockTimeout):
            lock.acquire(0.05)
        assert len(helpers()) == 1
        say(process, "release")
        assert eventually(lambda: helpers() == [])
        assert is_free(path)


def test_a_late_grant_does_not_take_the_lock_from_who_has_it_by_then(lock: FileLock, path: Path) -> None:
    with another(path) as process:
        for _ in range(3):
            with pytest.raises(LockTimeout):
                lock.acquire(0.02)
        say(process, "release")
        for _ in range(20):
            with lock.held():
                assert not is_free(path)
        assert eventually(lambda: len(helpers()) <= 1)
    assert is_free(path)


def test_a_waiter_leaves_no_descriptor_open(path: Path) -> None:
    before = set(os.listdir("/dev/fd"))
    lock = FileLock(path, 10)
    with another(path) as process:
        with pytest.raises(LockTimeout):
            lock.acquire(0.02)
        say(process, "release")
        with lock.held():
            pass
        assert eventually(lambda: len(helpers()) <= 1)
        lock.close()
        assert eventually(lambda: helpers() == [])
    assert set(os.listdir("/dev/fd")) == before


def test_a_thread_that_waited_waits_again(lock: FileLock, path: Path) -> None:
    seen: set[int | None] = set()

    def contend() -> None:
        with lock.held():
            seen.update(thread.ident for thread in helpers())

    for _ in range(3):
        with another(path) as process:
            contender = threading.Thread(target=contend)
            contender.start()
            assert eventually(lambda: lock._waiter is not None and lock._waiter._state == "waiting")
            say(process, "release")
            contender.join(30)
    assert len(seen) == 1


def test_stop_waiting_ends_a_wait(lock: FileLock, path: Path) -> None:
    with another(path):
        refused = threading.Event()

        def contend() -> None:
            with pytest.raises(LockTimeout):
                lock.acquire(60)
            refused.set()

        contender = threading.Thread(target=contend)
        contender.start()
        assert eventually(lambda: len(helpers()) == 1)
        lock.stop_waiting()
        contender.join(30)
        assert refused.is_set()
        begun = time.monotonic()
        with pytest.raises(LockTimeout):
            lock.acquire(60)
        assert time.monotonic() - begun < 30


def test_stop_waiting_just_before_a_wait_ends_it_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_LAST_WAITS", 0.0)
    begin = _Waiter.begin
    for is_after in (False, True):
        lock = FileLock(path, 60)

        def stopped(waiter: _Waiter, lock: FileLock = lock, is_after: bool = is_after) -> None:
            if is_after:
                begin(waiter)
            lock.stop_waiting()
            if not is_after:
                begin(waiter)

        monkeypatch.setattr(_Waiter, "begin", stopped)
        with taken(path), pytest.raises(LockTimeout) as caught:
            lock.acquire()
        assert caught.value.waited < 30
        lock.close()
        assert eventually(lambda: helpers() == [])


def test_without_a_thread_to_wait_with_it_times_out_and_leaks_nothing(
    lock: FileLock, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with taken(path) as release:
        before = set(os.listdir("/dev/fd"))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            for _ in range(3):
                with pytest.raises(LockTimeout) as caught:
                    lock.acquire()
                assert caught.value.pid == os.getpid() or caught.value.pid is None
        assert set(os.listdir("/dev/fd")) == before
        release()
        with lock.held():
            assert not is_free(path)


def test_the_thread_that_waited_ends_with_the_lock(path: Path) -> None:
    before = set(os.listdir("/dev/fd"))
    lock = FileLock(path, 10)
    for _ in range(3):
        wait_for_a_grant(lock, path)
        assert len(helpers()) == 1
    lock.close()
    assert helpers() == []
    assert set(os.listdir("/dev/fd")) == before


def wait_for_a_grant(lock: FileLock, path: Path) -> None:
    """Acquire a lock that is released only after the wait has begun, and release it."""
    begin = _Waiter.begin
    with taken(path) as release, pytest.MonkeyPatch.context() as patch:

        def begun(waiter: _Waiter) -> None:
            begin(waiter)
            release()

        patch.setattr(_Waiter, "begin", begun)
        with lock.held():
            assert not is_free(path)
    assert is_free(path)


class LateAnswer:
    """A lock whose ``acquire`` times out at the moment when it could succeed."""

    def __init__(self, answered: Any, grant: Callable[[], None]) -> None:
        self._answered = answered
        self._grant = grant

    def acquire(self, timeout: float) -> bool:
        self._grant()
        return False

    def release(self) -> None:
        self._answered.release()


def test_a_grant_at_the_moment_of_the_timeout_is_released_and_not_taken_for_a_later_one(
    lock: FileLock, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = _Waiter.begin
    with taken(path) as release, monkeypatch.context() as patch:

        def late(waiter: _Waiter) -> None:
            def grant() -> None:
                release()
                assert eventually(lambda: waiter._state == "granted")

            waiter._answered = LateAnswer(waiter._answered, grant)  # type: ignore[assignment]
            begin(waiter)

        patch.setattr(_Waiter, "begin", late)
        with pytest.raises(LockTimeout):
            lock.acquire(60)
    assert is_free(path)
    assert helpers() == []
    wait_for_a_grant(lock, path)


def interrupt(*_: object) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("moment", ["before the wait", "in it", "when it is granted", "when it is signed"])
def test_an_interrupted_wait_leaves_it_free_and_no_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    before = set(os.listdir("/dev/fd"))
    lock = FileLock(path, 60)
    begin, queue = _Waiter.begin, FileLock._queue
    with taken(path) as release, monkeypatch.context() as patch:

        def begun(waiter: _Waiter) -> None:
            begin(waiter)
            release()

        def granted(lock: FileLock, timeout: float) -> int:
            queue(lock, timeout)
            raise KeyboardInterrupt

        patch.setattr(_Waiter, "begin", begun)
        if moment == "before the wait":
            patch.setattr(_Waiter, "begin", interrupt)
        elif moment == "in it":
            patch.setattr(_Waiter, "wait", interrupt)
        elif moment == "when it is granted":
            patch.setattr(FileLock, "_queue", granted)
        else:
            patch.setattr(FileLock, "_sign", staticmethod(interrupt))
        with pytest.raises(KeyboardInterrupt), lock.held():
            pytest.fail("this block must not run")
    assert eventually(lambda: is_free(path))
    lock.close()
    assert eventually(lambda: helpers() == [])
    assert set(os.listdir("/dev/fd")) == before


def test_a_killed_holder_releases_it(lock: FileLock, path: Path) -> None:
    with another(path) as process:
        process.kill()
        process.wait()
        with lock.held():
            assert lock.holder() == os.getpid()


def test_closing_releases_it(path: Path) -> None:
    lock = FileLock(path, 1)
    lock.acquire()
    lock.close()
    lock.close()
    assert is_free(path)


def test_releasing_what_is_not_held_does_nothing(lock: FileLock, path: Path) -> None:
    lock.release()
    assert is_free(path)


def test_the_file_is_for_its_owner_only(lock: FileLock, path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_lock_that_cannot_be_opened_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(NotWritable):
        FileLock(tmp_path / "missing" / "bus.lock", 1)


# The parent forks while it holds the lock, then dies; the child lives on.
FORK_HOLDING = """
import os, sys
from pathlib import Path
from agentbus.engine.sqlite.lock import FileLock
lock = FileLock(Path(sys.argv[1]), 10)
lock.acquire()
if os.fork() == 0:
    print("held", flush=True)
    sys.stdin.readline()
    os._exit(0)
os._exit(0)
"""

# The parent has given up waiting, forks, and is granted the lock only then; the child lives on.
FORK_QUEUED = """
import os, sys, threading
from pathlib import Path
from agentbus.engine.sqlite.lock import FileLock
from agentbus.errors import LockTimeout
holder = FileLock(Path(sys.argv[1]), 10)
holder.acquire()
lock = FileLock(Path(sys.argv[1]), 10)
try:
    lock.acquire(0.05)
except LockTimeout:
    pass
ready, told = os.pipe()
if os.fork() == 0:
    os.write(told, b"x")
    sys.stdin.readline()
    os._exit(0)
os.read(ready, 1)
print("held", flush=True)
holder.release()
for thread in threading.enumerate():
    if thread.name == "agentbus-lock":
        thread.join()
print("over", flush=True)
sys.stdin.readline()
"""


def test_a_forked_child_does_not_keep_its_parents_lock(path: Path) -> None:
    with another(path, FORK_HOLDING) as process:
        process.wait(10)
        assert eventually(lambda: is_free(path))


def test_a_forked_child_does_not_stay_in_its_parents_queue(path: Path) -> None:
    with another(path, FORK_QUEUED) as process:
        assert say(process) == "over"
        assert is_free(path)


def test_a_forked_child_can_take_the_lock_for_itself(path: Path) -> None:
    script = FORK_HOLDING.replace(
        'print("held"', 'lock = FileLock(Path(sys.argv[1]), 10); lock.acquire(); print("held"'
    )
    with another(path, script) as process:
        process.wait(10)
        assert not is_free(path)
        assert process.stdin is not None
        process.stdin.close()
        assert eventually(lambda: is_free(path))


def test_the_wait_is_reported_once(lock: FileLock, path: Path) -> None:
    with lock.held():
        pass
    assert lock.lock_wait_ms() == 0
    with another(path):
        begun = time.monotonic()
        with pytest.raises(LockTimeout):
            lock.acquire(0.05)
        waited = (time.monotonic() - begun) * 1000
    assert 45 <= lock.lock_wait_ms() <= waited + 1
    assert lock.lock_wait_ms() == 0
