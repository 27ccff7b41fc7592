"""The quotas of a bus, for people: read and set."""

from __future__ import annotations

from typing import Any

from agentbus.engine.interface import Engine
from agentbus.limits import check_options
from agentbus.operations.quotas import ChangeQuotasRequest, change_quotas, read_quotas
from agentbus.records import QuotaPolicy


class Quotas:
    """``bus.quotas``: what one agent that has gone wild may take from the others. None of them is set at first.

    >>> await bus.quotas.change(depth=10_000, rate=50)                                # doctest: +SKIP
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def policy(self) -> QuotaPolicy:
        """The quotas that hold on this bus.

        >>> (await bus.quotas.policy()).depth                                         # doctest: +SKIP
        10000
        """
        return await self._engine.read(read_quotas, None)

    async def change(self, **changes: Any) -> QuotaPolicy:
        """Set quotas, from now on and for every process; what is not named stays as it is, None takes one away. The
        names are those of ``records.QuotaPolicy``; gives the quotas that hold then.

        >>> await bus.quotas.change(depth=10_000, rate=50, size=2 * 1024**3)          # doctest: +SKIP
        """
        check_options(changes, QuotaPolicy.__struct_fields__)
        QuotaPolicy(**changes)
        return await self._engine.write(change_quotas, ChangeQuotasRequest(changes))
