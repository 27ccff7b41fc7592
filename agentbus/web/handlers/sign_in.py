"""Login and logout of browsers, the identity of the caller, the health of the server, and the OpenAPI document."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import HTMLResponse, JSONResponse, Response

from agentbus import __version__
from agentbus.api.live import position
from agentbus.web.access import SESSION_LIFETIME, Principal
from agentbus.web.call import Body, Call, Done


class LoginBody(Body, frozen=True):
    """``token``: the secret of a token."""

    token: str


class Identity(msgspec.Struct, frozen=True):
    """The caller: its role (read, operate or agent), the agent of that role, and its operator. ``may_operate`` is False
    on a read-only server. ``bus`` is the id of the bus; ``location`` is where it is. ``cursor`` is the present one of
    the live feed: what is read afterwards and followed from there misses nothing but leases."""

    role: str
    agent: str | None
    operator: str
    token: str
    may_operate: bool
    read_only: bool
    bus: str
    location: str
    version: str
    started: int
    cursor: str


class Health(msgspec.Struct, frozen=True):
    """The server answers, and reaches the store."""

    status: str = "ok"


async def log_in(call: Call, body: LoginBody) -> Response | Identity:
    """Exchange a token for the cookie of a browser."""
    caller, session = await call.app.access.log_in(body.token)
    response = Response(msgspec.json.encode(await identity_of(call, caller)), media_type="application/json")
    response.set_cookie(
        call.app.access.cookie,
        session,
        max_age=SESSION_LIFETIME,
        path=f"{call.app.base_path}/",
        httponly=True,
        samesite="strict",
        secure=call.request.url.scheme == "https",
    )
    return response


async def log_out(call: Call) -> Response | Done:
    """End the session of this browser."""
    call.app.access.log_out(call.request.cookies.get(call.app.access.cookie))
    response = Response(msgspec.json.encode(Done()), media_type="application/json")
    response.delete_cookie(
        call.app.access.cookie, path=f"{call.app.base_path}/", httponly=True, samesite="strict"
    )  # fmt: skip
    return response


async def identity(call: Call) -> Identity:
    """Show who calls, and what the caller may do."""
    return await identity_of(call, call.caller)


async def identity_of(call: Call, caller: Principal) -> Identity:
    app = call.app
    may = caller.role == "operate" and not app.read_only
    return Identity(
        caller.role, caller.agent, caller.operator, caller.token, may, app.read_only, app.bus_id, app.location,
        __version__, app.started, str(await position(app.bus._engine)),
    )  # fmt: skip


async def health(call: Call) -> Health:
    """Check that the server answers and reaches the store."""
    await call.bus.quotas.policy()
    return Health()


async def openapi(call: Call) -> Response | dict[str, Any]:
    """Return the OpenAPI 3.1 document of this API."""
    return JSONResponse(call.app.openapi)


async def api_page(call: Call) -> Response:
    """Show a readable page of the API."""
    return HTMLResponse(call.app.api_page)
