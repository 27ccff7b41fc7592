"""A request as its handler sees it, and the parts of a route's schema that handlers name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.web.access import Principal
from agentbus.web.errors import InvalidRequest

if TYPE_CHECKING:
    from starlette.requests import Request

    from agentbus import Bus
    from agentbus.api.visitor import Visitor
    from agentbus.web.app import Application


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The query parameters of a route; a list may be given as ``a,b`` or by repeating the parameter."""


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON body of a request. One whose fields all have defaults may be left out."""


class Done(msgspec.Struct, frozen=True):
    """A change that has no result of its own is committed."""

    done: bool = True


class Count(msgspec.Struct, frozen=True):
    """The number of things that a change affected; ``dry_run``: that it would affect."""

    count: int
    dry_run: bool = False


class Created(msgspec.Struct, frozen=True):
    """Wraps a result whose status is 201."""

    value: Any


class Call:
    """One request: the bus, the caller, the names in the path, and the headers that matter."""

    def __init__(
        self,
        app: Application,
        request: Request,
        caller: Principal | None,
        names: Mapping[str, str],
        numbers: Mapping[str, int],
    ) -> None:
        self.app = app
        self.request = request
        self.names = names
        self.numbers = numbers
        """The numbers in the path, by name."""
        self._caller = caller
        self.when_abandoned: Callable[[], object] | None = None
        """Called if the client has gone before it received the response."""
        self.when_delivered: Callable[[], Awaitable[object]] | None = None
        """Called once the response was sent."""

    @property
    def bus(self) -> Bus:
        return self.app.bus

    @property
    def caller(self) -> Principal:
        """The caller. Only a public route has none."""
        if self._caller is None:
            raise InvalidRequest(reason="no caller")
        return self._caller

    @property
    def by(self) -> str:
        """The operator on whose behalf a change is made, as the audit log shows it."""
        return self.caller.operator

    @property
    def by_operator(self) -> str | None:
        """The operator who acts on an agent; None if the agent itself calls."""
        return None if self.caller.role == "agent" else self.caller.operator

    @property
    def idempotency_key(self) -> str | None:
        return self.request.headers.get("idempotency-key")

    def key_or(self, message_id: str | None) -> str | None:
        """Return the id of a message: the Idempotency-Key, or the one in the body."""
        key = self.idempotency_key
        if key is not None and message_id is not None and key != message_id:
            raise InvalidRequest(reason="Idempotency-Key and message_id differ: give one of them")
        return message_id if key is None else key

    async def visitor(self, epoch: int | None) -> Visitor:
        """Return the agent that the path names, to act in its name."""
        return await self.bus.visitor(self.names["agent"], epoch=epoch)


def given(body: msgspec.Struct, *left_out: str) -> dict[str, Any]:
    """Return the fields of a body that the client has given, by name."""
    found = {name: getattr(body, name) for name in body.__struct_fields__ if name not in left_out}
    return {name: value for name, value in found.items() if value is not msgspec.UNSET}


def set_fields(body: msgspec.Struct, *left_out: str) -> dict[str, Any]:
    """Return the fields of a body that are not null, by name."""
    return {name: value for name, value in given(body, *left_out).items() if value is not None}
