"""Help in the width of the terminal. Imported only for who asks for it: finding out that width takes longer than
building a parser."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterator
from shutil import get_terminal_size
from textwrap import wrap

WIDTH = 100
"""Characters of a line of help, where nobody knows better."""
_FOLDED = 80
"""An author's line of so many characters was folded, and goes on in the next."""


class FittingFormatter(RawDescriptionHelpFormatter):
    """Also folds the descriptions, which have lines of their own."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=room())

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return fitted(text, width)


def room() -> int:
    """How many characters a line of help has: those of the terminal, but no more than can be read well."""
    return min(WIDTH, get_terminal_size((WIDTH, 24)).columns)


def fitted(text: str, width: int) -> str:
    """A text in lines of this width. What is indented stays so, and commands stay whole, to be copied.

    >>> print(fitted("one two three\\n  four five six", 11))
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
    """The lines that were meant: what an author folded is put together."""
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
