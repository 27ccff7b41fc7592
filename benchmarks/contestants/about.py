"""The description of a contestant, and the import of optional packages."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol


class About(Protocol):
    """The key, table title and durability of a contestant."""

    @property
    def key(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def durability(self) -> str: ...


def package(name: str) -> Any:
    """Import a package of the ``bench`` extra, untyped because it may not be installed."""
    return import_module(name)


def missing_packages(packages: Sequence[str]) -> str | None:
    """Return a text that names the packages that are not installed, or None."""
    missing = [name for name in packages if find_spec(name) is None]
    return f"{' and '.join(missing)} not installed" if missing else None
