"""How a visiting agent receives: claim, sleep until a bell or until something is due, claim again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from time import sleep
from typing import TYPE_CHECKING

from agentbus.blocking.deliveries import Delivery, delivery
from agentbus.errors import AgentBusError, DamagedPayload
from agentbus.limits import check_seconds
from agentbus.operations import Row, mailbox_channel
from agentbus.operations.claims import CONTESTED, CONTESTS, Claim, ClaimRequest, claim, horizon, ready_rows

if TYPE_CHECKING:
    from agentbus.blocking.agent import BlockingAgent
    from agentbus.engine.blocking import Attendance


@contextmanager
def received(agent: BlockingAgent, most: int, timeout: float, duration: int) -> Iterator[list[Delivery]]:
    """Up to ``most`` messages; a block that raises gives them back."""
    from agentbus.engine.signals import undisturbed

    patience = check_seconds(timeout, "timeout", zero=True)
    boxes = Boxes(agent)
    rows: Sequence[Row] = ()
    try:
        with undisturbed():
            found = boxes.claim(most, duration)
            rows = found.rows
        contests = CONTESTS
        while found.contested and contests and not patience:
            # There is something, which another transaction looks at: it takes it, or leaves it, very soon.
            contests -= 1
            sleep(CONTESTED)
            with undisturbed():
                found = boxes.claim(most, duration)
                rows = found.rows
        if not rows and patience:
            deadline = agent.engine.clock.now().awake + patience
            with agent.bus.store.attend() as attendance:
                attendance.listen(boxes.channels)
                while True:
                    with undisturbed():
                        found = boxes.claim(most, duration)
                        rows = found.rows
                    if rows or not boxes.sleep(attendance, deadline, found.next_wall, found.next_awake):
                        break
        yield boxes.opened(rows)
    except BaseException:
        boxes.give_back(rows)
        raise


def peek(agent: BlockingAgent, most: int) -> list[Delivery]:
    """What a claim would get now. Who may not receive is refused as well."""
    agent.heartbeat()
    boxes = Boxes(agent)
    rows = agent.bus.read(ready_rows, ((*boxes.own, *boxes.pools), most))
    return [delivery(row, boxes.names[row[13]], handed=False) for row in rows]


def in_hand(agent: BlockingAgent, most: int) -> list[Delivery]:
    """What it received and has not settled."""
    from agentbus.operations.leases import holdings
    from agentbus.operations.reading import get_message

    agent.heartbeat()
    found: list[Delivery] = []
    for held in agent.bus.read(holdings, agent.id)[:most]:
        # By its row: copies of a published message share their message_id.
        record = agent.bus.read(get_message, f"m-{held.id}")
        if record is not None:
            found.append(
                Delivery(
                    record.message_id, f"{record.message_id}#{held.lease}", record.sender, record.recipient,
                    record.type, record.payload, record.priority, record.attempts, record.session,
                    record.correlation, held.reply_to is not None, record.created, record.expires,
                )
            )  # fmt: skip
    return found


def wait(agent: BlockingAgent, timeout: float | None) -> bool:
    """Wait until it is worth calling ``receive``."""
    from agentbus.operations.reading import pending

    boxes = Boxes(agent)
    mailboxes = (*boxes.own, *boxes.pools)
    agent.heartbeat()
    if agent.bus.read(pending, mailboxes):
        return True
    patience = None if timeout is None else check_seconds(timeout, "timeout", zero=True)
    if patience == 0:
        return False
    deadline = None if patience is None else agent.engine.clock.now().awake + patience
    with agent.bus.store.attend() as attendance:
        attendance.listen(boxes.channels)
        while not agent.bus.read(pending, mailboxes):
            if not boxes.sleep(attendance, deadline, *agent.bus.read(horizon, mailboxes)):
                return False
    return True


class Boxes:
    """The mailboxes that an agent reads."""

    def __init__(self, agent: BlockingAgent) -> None:
        life = agent.life
        self.own = (life.mailbox, *life.subscriptions.values())
        self.pools = tuple(life.pools.values())
        self.channels = tuple(mailbox_channel(box) for box in (*self.own, *self.pools))
        self.names = {
            life.mailbox: agent.id,
            **{box: f"pool:{name}" for name, box in life.pools.items()},
            **{box: f"topic:{name}" for name, box in life.subscriptions.items()},
        }
        self._agent = agent

    def claim(self, most: int, duration: int) -> Claim:
        return self._agent.call(
            claim, ClaimRequest(self._agent.actor, (), self.own, self.pools, most, duration, counted=True)
        )

    def sleep(self, attendance: Attendance, deadline: int | None, wall: int | None, awake: int | None) -> bool:
        """Sleep until something rings, is due, or it is time to show life; False once the deadline has passed."""
        from agentbus.blocking.waiting import NAP

        now = self._agent.engine.clock.now()
        if deadline is not None and deadline <= now.awake:
            return False
        waits = [
            NAP * 1000,
            *(() if wall is None else (wall - now.wall,)),
            *(() if awake is None else (awake - now.awake,)),
            *(() if deadline is None else (deadline - now.awake,)),
        ]
        if not attendance.wait(max(0.001, min(waits) / 1000)):
            self._agent.heartbeat()
        return True

    def opened(self, rows: Sequence[Row]) -> list[Delivery]:
        """The messages of these rows. One whose bytes were damaged becomes a dead letter; its neighbours go on."""
        found: list[Delivery] = []
        for row in rows:
            try:
                found.append(delivery(row, self.names[row[13]]))
            except DamagedPayload as damage:
                from agentbus.operations.leases import RejectRequest, reject

                request = RejectRequest(self._agent.actor, ((row[0], row[8] + 1),), str(damage))
                self._agent.call(reject, request)
        return found

    def give_back(self, rows: Sequence[Row]) -> None:
        """As if they had not been handed out."""
        from agentbus.operations.leases import ReleaseRequest, release

        for row in rows:
            request = ReleaseRequest(self._agent.actor, ((row[0], row[8] + 1),), restore=(row[7],))
            with suppress(AgentBusError):
                self._agent.call(release, request)
