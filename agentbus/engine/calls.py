"""What writers and transactions hand to each other."""

from __future__ import annotations

from typing import Any

from agentbus.operations import Operation


class Call:
    """One caller's request for one operation, and what became of it."""

    __slots__ = ("durable", "operation", "outcome", "request")

    def __init__(self, operation: Operation[Any, Any], request: Any, durable: bool) -> None:
        self.operation = operation
        self.request = request
        self.durable = durable
        self.outcome: Any = None

    @property
    def beside(self) -> bool:
        """Whether it may run beside other transactions. A unit's parts decide that for it."""
        own: bool | None = getattr(self.request, "beside", None)
        return self.operation.beside if own is None else own

    @property
    def grows(self) -> bool:
        """Whether it makes the bus larger, as those do that store what a caller gives them."""
        return bool(getattr(self.request, "grows", self.operation.grows))
