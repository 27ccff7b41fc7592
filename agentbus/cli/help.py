"""Help in the width of the terminal. Imported for --help only: it takes longer than building a parser."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterator
from shutil import get_terminal_size
from textwrap import wrap

WIDTH = 100
"""Default width of help."""
_FOLDED = 80
"""Length from which a source line is continued on the next."""


class FittingFormatter(RawDescriptionHelpFormatter):
    """A formatter that also folds descriptions."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=line_width())

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return wrap_text(text, width)


def line_width() -> int:
    """Return the width of help: that of the terminal, up to a readable maximum."""
    return min(WIDTH, get_terminal_size((WIDTH, 24)).columns)


def wrap_text(text: str, width: int) -> str:
    """Wrap a text. Indentation is preserved, and commands stay on one line, to be copied.

    >>> print(wrap_text("one two three\\n  four five six", 11))
    one two
    three
      four five
        six
    """
    found: list[str] = []
    for line in _lines(text):
        indent = line[: len(line) - len(line.lstrip())]
        if indent and line.lstrip().startswith("agentbus "):
            found.append(line)
            continue
        further = f"{indent}  " if indent else ""
        folded = wrap(line, width, subsequent_indent=further, break_long_words=False, break_on_hyphens=False)
        found += folded or [""]
    return "\n".join(found)


def _lines(text: str) -> Iterator[str]:
    """Yield the logical lines: folded source lines are joined."""
    whole = ""
    for line in text.split("\n"):
        if len(whole) >= _FOLDED and not whole.startswith(" ") and line and not line.startswith(" "):
            whole = f"{whole} {line}"
            continue
        yield from [whole] if whole else []
        if not line:
            yield line
        whole = line
    yield from [whole] if whole else []
