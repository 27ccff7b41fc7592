"""How much one commit may remove or rewrite, so that nobody waits long for the lock."""

from __future__ import annotations

import msgspec


class Budget(msgspec.Struct):
    """Bytes that may yet go, or what takes as long; the last row may be larger than what is left."""

    left: int = 4 * 1024 * 1024

    def spend(self, size: int) -> bool:
        """Whether a row of so many bytes still goes; then it counts, with about what a small row takes."""
        if self.spent:
            return False
        self.left -= size + _ROW
        return True

    def pass_by(self) -> None:
        """A row was only looked at."""
        self.left -= _ROW // 10

    @property
    def spent(self) -> bool:
        return self.left <= 0


_ROW = 1024
