"""The number of examples that Hypothesis tries: a fifth in ``make test``, all of them with ``--full``."""

from __future__ import annotations


class Examples:
    """The size of this run, known before the tests are imported."""

    full = False

    def __call__(self, full: int) -> int:
        """Return the number to try of a test that tries ``full`` in its whole size."""
        return full if self.full else max(10, full // 5)


examples = Examples()
