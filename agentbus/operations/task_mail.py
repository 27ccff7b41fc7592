"""The mailbox of a task, ``task:ID``: created by its first message, read by ``task.receive``, and emptied when the task
is deleted.

As with an agent, messages that are left when the task ends stay in the mailbox: a task that is resumed, redone or
restarted reads them. They become dead letters when it is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import plain_payload
from agentbus.core.validation import TASK_ENDED
from agentbus.operations.common import Budget
from agentbus.operations.events import event, record
from agentbus.operations.protocol import ExecuteMany, Op, Query, Wake
from agentbus.operations.receive import dead_letter, maintain
from agentbus.operations.rows import Held, MessageRow
from agentbus.operations.task_ownership import READY, HeldTask, worker_channel

_LETTERS = 100
"""Messages that are read together."""
_LETTER = 4096
"""Cost of a dead letter besides its payload, in bytes: it is recorded in the audit log, and a requester is notified."""


class TaskBox(msgspec.Struct, frozen=True):
    """A task as the sender of a message needs it, and its mailbox, once it has one."""

    id: str
    number: int
    status: str
    holder: str | None
    manual: int
    mailbox: int | None

    @property
    def ended(self) -> bool:
        return self.status in TASK_ENDED


def read_mailboxes(ids: Sequence[str]) -> Op[dict[str, TaskBox]]:
    """Return tasks by id."""
    rows = yield Query("task_recipients", (list(ids),))
    return {row[0]: TaskBox(*row) for row in rows}


def open_mailboxes(ids: Sequence[str], now: Now) -> Op[dict[str, TaskBox]]:
    """Return tasks by id, creating the mailboxes that are missing. An ended task and a work item need none."""
    boxes = yield from read_mailboxes(ids)
    # In a fixed order, so that concurrent transactions cannot deadlock.
    missing = sorted(one.id for one in boxes.values() if one.mailbox is None and not one.ended and not one.manual)
    if missing:
        yield ExecuteMany("mailbox_ensure", [("task", id, "", now.wall) for id in missing])
        boxes |= yield from read_mailboxes(missing)
    return boxes


def notify_tasks(tasks: Iterable[TaskBox], now: Now) -> Op[None]:
    """Make tasks ready that wait for a message, and wake the workers of running ones."""
    ready: list[str] = []
    channels: list[str] = []
    # In a fixed order, as above.
    for task in sorted(tasks, key=lambda one: one.number):
        if task.status == "waiting":
            ready += [id for (id,) in (yield Query("task_mail_arrived", (now.wall, task.number)))]
        elif task.holder is not None:
            channels.append(worker_channel(task.holder))
    yield from record([event(now.wall, "task_pending", ("task", id), None, before="waiting") for id in ready])
    yield Wake([*channels, *([READY] if ready else [])])


def take_message(task: HeldTask, now: Now) -> Op[tuple[int, tuple[str, int]] | None]:
    """Acknowledge the most urgent message of a task; return its row, and the JSON that the task records of it."""
    found = yield Query("message_for_task", (task.number, now.wall))
    if not found or not found[0][1]:
        return None
    mailbox = found[0][0]
    yield from maintain([mailbox], now)
    ready = yield Query("message_waiting", (mailbox, 1))
    if not ready:
        return None
    id = ready[0][1]
    (row,) = yield Query("message_rows", ([id],))
    message = MessageRow(*row)
    # A damaged message fails the transaction; it stays in the mailbox.
    contents = message.contents()
    yield ExecuteMany("message_receive", [(now.wall, id)])
    return id, plain_payload(
        {
            "message_id": message.public_id,
            "sender": message.sender,
            "type": message.type,
            "priority": message.priority,
            "session": message.session,
            "correlation": message.correlation,
            "wants_reply": message.reply_to is not None,
            "created": message.created,
            "expires": message.expires,
            "reply_to": message.reply_to,
            **contents,
        }
    )


def next_message(task: HeldTask, now: Now) -> Op[int | None]:
    """Return when the next scheduled message of a task is due (wall)."""
    found = yield Query("message_for_task", (task.number, now.wall))
    return found[0][2] if found else None


def dead_letter_mail(task: str, budget: Budget, now: Now) -> Op[None]:
    """Dead-letter the messages that wait for a task, as far as the budget allows."""
    more = not budget.spent
    while more:
        rows = yield Query("message_unread_of_task", (task, _LETTERS))
        going = [Held(*row) for size, *row in rows if budget.spend(size + _LETTER)]
        yield from dead_letter([held.ending("its recipient was deleted") for held in going], now)
        more = len(going) == _LETTERS
