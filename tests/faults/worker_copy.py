"""Copies a bus in small batches. Given a number, it says so when it has made that many steps (after a word: steps of
that kind), and goes no further than a few more: it is going to be killed."""

import sys
from contextlib import closing

from agentbus.blocking import open_store
from agentbus.services import copying
from tests.support.processes import say

FEW = 6


class Steps:
    def __init__(self, most: int, kind: str) -> None:
        self._left = most
        self._kind = kind

    def __call__(self, done: int, total: int, what: str) -> None:
        if not what.startswith(self._kind):
            return
        self._left -= 1
        if not self._left:
            say("here", done, total, what)
        if self._left == -FEW:
            sys.stdin.read()


def main(source: str, target: str, steps: str = "", kind: str = "") -> None:
    copying.ROWS = 50
    progress = Steps(int(steps), kind) if steps else None
    with closing(open_store(source)) as store:
        report = copying.copy_bus(store, lambda: open_store(target, create=True), progress)
    say("copied", report.rows, report.resumed)


if __name__ == "__main__":
    main(*sys.argv[1:])
