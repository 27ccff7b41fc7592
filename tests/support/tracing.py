"""The system calls of a worker, by strace: recorded with all that they write, or answered with a fault.

strace rather than a library of our own in LD_PRELOAD: it needs no compiler, sees what SQLite, Python and every child do
in the one order in which it happened, and can kill or fail exactly the k-th call of a kind.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

_RECORDED = (
    "pwrite64,write,fsync,fdatasync,io_submit,io_getevents,ftruncate,openat,"
    "unlink,unlinkat,rename,renameat,renameat2,link,linkat,mkdir,mkdirat"
)
_LINE = re.compile(rb"(\d+) +(?:<\.\.\. )?(\w+)(?: resumed>)?(.*)")
_TEXT = re.compile(rb'(?:"((?:\\x[0-9a-f]{2})*)"|<((?:\\x[0-9a-f]{2})*)>)')


class Step(NamedTuple):
    """One call that succeeded, or an fsync that did not (its ``result`` is negative): ``texts`` are its paths and data,
    ``rest`` what else it was given."""

    call: str
    texts: list[bytes]
    rest: bytes
    result: int
    process: int
    """The thread that called."""


@cache
def refusal() -> str | None:
    """Why there is no strace here; None if there is."""
    if shutil.which("strace") is None:
        return "needs strace"
    command = ["strace", "-f", "-e", "inject=fsync:error=EIO:when=1", "-o", "/dev/null", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"strace may not trace here: {done.stderr.strip()[:200]}" if done.returncode else None


def require_strace() -> None:
    """Skip a test where nothing can be traced."""
    if (reason := refusal()) is not None:
        pytest.skip(reason)


def recording(trace: Path, *inject: str) -> list[str]:
    """The command in front of a command that records it; meanwhile calls may be made to fail, in strace's words."""
    options = ["-f", "--seccomp-bpf", "-qq", "-y", "-xx", "-s", "2000000", "-e", "signal=none"]
    failing = [word for one in inject for word in ("-e", f"inject={one}")]
    return ["strace", *options, "-e", f"trace={_RECORDED}", *failing, "-o", str(trace)]


def injecting(calls: Sequence[str], what: str, when: str) -> list[str]:
    """The command in front of a command whose calls shall fail: ``what`` and ``when`` are strace's own words."""
    names = ",".join(calls)
    # strace cannot make a sync fail that the kernel does asynchronously: without it, each sync is a call of its own.
    refused = ["-e", "inject=io_setup:error=ENOSYS"] if what.startswith("error") else []
    # Where the kernel filters the calls, strace cannot deliver a signal with one.
    quick = [] if what.startswith("signal") else ["--seccomp-bpf"]
    options = ["-f", *quick, "-qq", "-e", "signal=none", "-o", "/dev/null"]
    return ["strace", *options, "-e", f"trace={names},io_setup", *refused, "-e", f"inject={names}:{what}:when={when}"]


def steps(trace: Path) -> Iterator[Step]:
    """Return the recorded calls in the order in which they were done."""
    begun: dict[bytes, bytes] = {}
    with trace.open("rb") as lines:
        for line in lines:
            found = _LINE.match(line)
            if found is None:
                continue
            thread, call, rest = found.groups()
            if rest.endswith(b"<unfinished ...>"):
                begun[thread] = rest.removesuffix(b"<unfinished ...>")
                continue
            rest = begun.pop(thread, b"") + rest
            arguments, equals, answer = rest.rpartition(b" = ")
            result = re.match(rb"-?\d+", answer)
            if not equals or result is None or (int(result[0]) < 0 and call not in {b"fsync", b"fdatasync"}):
                continue
            texts = [
                bytes.fromhex((one or other).replace(b"\\x", b"").decode()) for one, other in _TEXT.findall(arguments)
            ]
            yield Step(call.decode(), texts, _TEXT.sub(b"", arguments), int(result[0]), int(thread))
