"""Texts of anybody's on the way to a terminal."""

from __future__ import annotations


def harmless(text: str) -> str:
    r"""A text of anybody's, without what would make the terminal do something.

    >>> harmless("\x1b[2Jgone")
    '\\x1b[2Jgone'
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)
