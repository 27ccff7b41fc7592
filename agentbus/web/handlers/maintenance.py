"""The state of the bus at a glance, types, quotas, retention, the doctor, sweeps and backups."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from starlette.responses import Response

from agentbus.api.bus import KEEP_BACKUPS
from agentbus.api.maintenance.retention import RetentionChanges
from agentbus.api.messages import QuotaChanges
from agentbus.api.metrics import CONTENT_TYPES, collect, negotiate, render
from agentbus.api.overview import Overview, capacity_limits, gather_overview
from agentbus.records import (
    BackupRecord,
    Check,
    QuotaPolicy,
    RetentionPolicy,
    RetentionReport,
    Stats,
    Sweep,
    TypeRecord,
)
from agentbus.web.call import Body, Call, Created, Query, given

METRICS_MEDIA = tuple(kind.partition(";")[0] for kind in CONTENT_TYPES.values())


class TypesQuery(Query, frozen=True):
    kind: Literal["agent", "message"] | None = None


class DefineBody(Body, frozen=True, kw_only=True):
    name: str
    kind: Literal["agent", "message"] = "message"
    description: str = ""
    schema: dict[str, Any] | None = None


class DeepestQuery(Query, frozen=True):
    deepest: int = 20


class QuotasBody(Body, frozen=True):
    """Quotas to change; null removes one."""

    depth: int | msgspec.UnsetType | None = msgspec.UNSET
    rate: float | msgspec.UnsetType | None = msgspec.UNSET
    size: int | msgspec.UnsetType | None = msgspec.UNSET
    thread: int | msgspec.UnsetType | None = msgspec.UNSET


class RetentionBody(Body, frozen=True):
    """Periods to change; ``RetentionPolicy`` describes them. Null keeps data indefinitely."""

    checkpoints_last: int | msgspec.UnsetType = msgspec.UNSET
    checkpoints_daily: int | msgspec.UnsetType | None = msgspec.UNSET
    messages: float | msgspec.UnsetType | None = msgspec.UNSET
    dead_letters: float | msgspec.UnsetType | None = msgspec.UNSET
    messages_most: int | msgspec.UnsetType | None = msgspec.UNSET
    agents: float | msgspec.UnsetType | None = msgspec.UNSET
    sessions: float | msgspec.UnsetType | None = msgspec.UNSET
    failed_sessions: float | msgspec.UnsetType | None = msgspec.UNSET
    tasks: float | msgspec.UnsetType | None = msgspec.UNSET
    events: float | msgspec.UnsetType | None = msgspec.UNSET
    processes: float | msgspec.UnsetType | None = msgspec.UNSET
    tombstones: float | msgspec.UnsetType | None = msgspec.UNSET
    histories: float | msgspec.UnsetType | None = msgspec.UNSET


class ApplyBody(Body, frozen=True):
    dry_run: bool = False


class BackupBody(Body, frozen=True):
    """``keep``: the number of backups to keep, this one included."""

    keep: int = KEEP_BACKUPS


class Doctor(msgspec.Struct, frozen=True):
    """The checks of the doctor, and the worst of their results."""

    status: str
    checks: list[Check]


async def overview(call: Call) -> Overview:
    """Show the state of the bus: counts, unfinished work by name, open questions, capacity."""
    return await gather_overview(call.bus, call.bus._engine.home, capacity_limits())


async def stats(call: Call, query: DeepestQuery) -> Stats:
    """Show counts by status, the deepest queues, and sizes."""
    return await call.bus.stats(deepest=query.deepest)


async def metrics(call: Call) -> Response:
    """Return the metrics for Prometheus: text 0.0.4, or OpenMetrics 1.0 if the Accept header prefers it. Also at
    /metrics, outside of the API."""
    format = negotiate(call.request.headers.get("accept"))

    async def read() -> bytes:
        bus = call.bus
        return render(
            await collect(bus, bus._engine.home, process=True, changes=call.app.rates.totals), format
        ).encode()

    content = await call.app.shared.read(("metrics", format), read)
    return Response(content, headers={"Content-Type": CONTENT_TYPES[format], "Vary": "Accept, Authorization, Cookie"})


async def list_types(call: Call, query: TypesQuery) -> list[TypeRecord]:
    """List the built-in types and those that were defined."""
    return await call.bus.types(query.kind)


async def define_type(call: Call, body: DefineBody) -> Created | TypeRecord:
    """Define a type, or change its description or schema."""
    await call.bus.define(body.name, kind=body.kind, description=body.description, schema=body.schema)
    return Created(next(one for one in await call.bus.types(body.kind) if one.name == body.name))


async def get_quotas(call: Call) -> QuotaPolicy:
    """Show the quotas of the bus."""
    return await call.bus.quotas.policy()


async def change_quotas(call: Call, body: QuotasBody) -> QuotaPolicy:
    """Set quotas; those not given stay."""
    changes: QuotaChanges = given(body)  # type: ignore[assignment]
    return await call.bus.quotas.change(by=call.by, **changes)


async def get_retention(call: Call) -> RetentionPolicy:
    """Show the retention policy of the bus."""
    return await call.bus.retention.policy()


async def change_retention(call: Call, body: RetentionBody) -> RetentionPolicy:
    """Change periods of the retention policy; those not given stay."""
    changes: RetentionChanges = given(body)  # type: ignore[assignment]
    return await call.bus.retention.change(by=call.by, **changes)


async def apply_retention(call: Call, body: ApplyBody) -> RetentionReport:
    """Archive and delete data past its retention period; with ``dry_run`` only count it."""
    return await call.bus.retention.apply(dry_run=body.dry_run)


async def doctor(call: Call) -> Doctor:
    """Check the bus for problems. Changes nothing."""
    checks = await call.bus.doctor()
    found = {check.status for check in checks}
    return Doctor(next((status for status in ("error", "warning") if status in found), "ok"), checks)


async def sweep(call: Call) -> Sweep:
    """Sweep the bus once: fail agents of dead processes, release expired leases, expire messages."""
    return await call.bus.sweep()


async def back_up(call: Call, body: BackupBody) -> Created | BackupRecord:
    """Make a verified backup in the directory of the bus. One on a server is backed up with the tools of the server."""
    return Created(await call.bus.backup(keep=body.keep))
