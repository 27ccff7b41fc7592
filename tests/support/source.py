"""Source files of the project as syntax trees."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path


def syntax_tree(file: Path) -> ast.Module:
    """Parse a Python file.

    Without the garbage collector: it may format the traceback of a task that another test left behind, for which Python
    parses source too, and some releases of 3.11 then raise SystemError here.
    """
    gc.disable()
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    finally:
        gc.enable()


@cache
def package_tree(file: Path) -> ast.Module:
    """Parse a file of the package, once for all tests of this process."""
    return syntax_tree(file)


@cache
def package_nodes(file: Path) -> tuple[ast.AST, ...]:
    """Return what ``ast.walk`` yields for a file of the package."""
    return tuple(ast.walk(package_tree(file)))
