"""Copy a bus in small batches. Given a number, report that step and stop soon after it, to be killed."""

import sys
from contextlib import closing

from agentbus.api.maintenance import copy
from agentbus.sync.bus import open_store
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
    copy.ROWS = 50
    progress = Steps(int(steps), kind) if steps else None
    with closing(open_store(source)) as store:
        report = copy.copy_bus(store, lambda: open_store(target, create=True), progress)
    say("copied", report.rows, report.resumed)


if __name__ == "__main__":
    main(*sys.argv[1:])
