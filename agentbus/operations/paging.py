"""Pages of what is listed. A question asks for a row more than a page holds, which says whether more follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from agentbus.operations import Row, Rows

if TYPE_CHECKING:
    from agentbus.records import Page

T = TypeVar("T")


def page(rows: Rows, limit: int, make: Callable[[Row], T], cursor: Callable[[T], str]) -> Page[T]:
    """The first rows as records; if there are more, with the cursor of the last one."""
    items = [make(row) for row in rows[:limit]]
    from agentbus.records import Page

    return Page(items, cursor(items[-1]) if len(rows) > limit else None)
