"""Tasks in archives: a line for each, with its steps and approvals; when they go, and how they come back.

A task that had not ended when it was written down is halted here: nobody goes on with it until a person says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.clock import Now
from agentbus.errors import ArchiveDiffers
from agentbus.limits import TASK_ENDED
from agentbus.operations import Each, Op, Outcome, Query
from agentbus.operations.archives import ArchivedApproval, ArchivedStep, ArchivedTask, Line
from agentbus.operations.events import event, record
from agentbus.operations.holding import HeldTask, apply_redos, known_task


def load_tasks(ids: Sequence[str], now: Now) -> Op[list[Line]]:
    """Tasks with all that they have."""
    lines: list[Line] = []
    for id in ids:
        for row in (yield Query("task_archive", (id,))):
            steps = yield Query("step_archive", (id,))
            approvals = yield Query("approval_archive", (id,))
            task = ArchivedTask(*row)
            lines.append(
                msgspec.structs.replace(
                    task,
                    steps=[ArchivedStep(*one) for one in steps],
                    approvals=[ArchivedApproval(*one) for one in approvals],
                )
            )
    return lines


def restore_task(line: ArchivedTask, now: Now) -> Op[Outcome[bool]]:
    """Put a task back that is not there; one that is there knows better."""
    if (yield Query("task_known", ([line.id],))):
        same = yield Query("task_same", (line.id, line.workflow, line.created))
        return False if same else ArchiveDiffers(what="task", id=line.id)
    if line.session is not None and not (yield Query("session_status", (line.session,))):
        line = msgspec.structs.replace(line, session=None)
    open_ = line.status not in TASK_ENDED
    if open_:
        line = msgspec.structs.replace(line, status="halted")
    ((number,),) = yield Query("task_restore", line.row()[:-3])
    yield Each("step_restore", [(number, *msgspec.structs.astuple(step)) for step in line.steps])
    yield Each("approval_restore", [(number, *msgspec.structs.astuple(one)) for one in line.approvals])
    if open_:
        yield Each("step_interrupt", [(number,)])
        yield from _redone(line, now)
    return True


def _redone(line: ArchivedTask, now: Now) -> Op[None]:
    """Carry out the redos that waited when a task was archived: nothing runs beside them here."""
    found = None if line.redo is None else (yield from known_task(line.id))
    if isinstance(found, HeldTask):
        yield from apply_redos(msgspec.structs.replace(found, redo=line.redo), now)


def delete_tasks(ids: Sequence[str], now: Now) -> Op[None]:
    """Ended tasks go for good."""
    going = [(id,) for id in ids]
    yield Each("step_delete", going)
    yield Each("approval_delete", going)
    yield Each("task_delete", going)
    yield from record([event(now.wall, "task_deleted", ("task", id), None) for id in ids])
