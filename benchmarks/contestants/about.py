"""What is said of every contestant, and how those are found that may be missing."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol


class About(Protocol):
    """How a contestant is called in the tables, and what of it survives a power cut."""

    @property
    def key(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def durability(self) -> str: ...


def package(name: str) -> Any:
    """A package of the ``bench`` extra, which is not there to be type-checked."""
    return import_module(name)


def lacking(packages: Sequence[str]) -> str | None:
    """What is not installed, in words; None if everything is."""
    missing = [name for name in packages if find_spec(name) is None]
    return f"{' and '.join(missing)} not installed" if missing else None
