"""Agents as version 5 of the tables has them, with ids of the form that belongs to people from version 6 on."""

from __future__ import annotations

import pytest

from agentbus import Bus
from agentbus.errors import InvalidName

_SUM = "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"
LONGEST = "operator:" + "x" * 119
"""The longest id: its new one may not be longer."""
OLD_OPERATORS = """
INSERT INTO sessions (id, operation, status, expected, created, updated)
VALUES ('s', 'planning', 'paused', '{"operator:ada":"plan","operator:free":"notes","b":"c"}', 1, 1);
INSERT INTO mailboxes (kind, name, owner, created) VALUES
    ('agent', 'operator:ada', 'operator:ada', 1), ('replies', 'operator:ada', 'operator:ada', 1),
    ('agent', 'b', 'b', 1), ('replies', 'b', 'b', 1), ('pool', 'operator:pool', '', 1), ('topic', 'news', '', 1),
    ('subscription', 'news', 'operator:ada', 1), ('agent', 'operator:gone', 'operator:gone', 1),
    ('agent', '$longest', '$longest', 1), ('replies', '$longest', '$longest', 1);
INSERT INTO agents (id, name, type, status, session, parent, mailbox, replies, epoch, started, created, updated, ended,
    cut_off)
VALUES ('operator:ada', 'operator:ada', 'worker', 'running', 's', NULL, 1, 2, 3, 1, 1, 1, NULL, 0),
    ('$longest', 'Longest', 'worker', 'failed', NULL, NULL, 9, 10, 1, 1, 1, 1, 1, 1),
    ('b', 'b', 'worker', 'failed', NULL, 'operator:ada', 3, 4, 1, 1, 1, 1, 1, 1);
INSERT INTO pool_members (pool, agent, joined) VALUES (5, 'operator:ada', 1);
INSERT INTO subscriptions (topic, agent, mailbox, since) VALUES (6, 'operator:ada', 7, 1);
INSERT INTO workflows (workflow, agent, signature) VALUES ('w', 'operator:ada', '[]');
INSERT INTO messages (id, mailbox, sender, type, checksum, priority, status, max_attempts, created, payload, holder,
    lease_until, lease, attempts)
VALUES (1, 1, 'b', 'note', 2212294583, 5, 'queued', 5, 1, '1', NULL, NULL, 0, 0),
    (2, 3, 'operator:ada', 'note', 2212294583, 5, 'queued', 5, 1, '1', NULL, NULL, 0, 0),
    (3, 5, 'b', 'note', 2212294583, 5, 'leased', 5, 1, '1', 'operator:ada', 9999999999999, 1, 1),
    (4, 7, 'b', 'note', 2212294583, 5, 'queued', 5, 1, '1', NULL, NULL, 0, 0);
INSERT INTO state (scope, key, version, change, checksum, author, created, updated, value)
VALUES ('operator:ada', 'k', 1, 1, 2212294583, 'operator:ada', 1, 1, '1'),
    ('operator:free', 'k', 1, 2, 2212294583, 'b', 1, 1, '1');
INSERT INTO state_floors (scope, version) VALUES ('operator:ada', 4);
INSERT INTO checkpoints (owner_kind, owner, name, created, checksum, size, snapshot)
VALUES ('agent', 'operator:ada', 'c', 1, '$sum', 1, '1'), ('task', 'operator:ada', 'c', 1, '$sum', 1, '1');
INSERT INTO documents (session, name, version, checksum, author, created, value)
VALUES ('s', 'plan', 1, '$sum', 'operator:ada', 1, '1');
INSERT INTO participants (session, meeting, member, position, created)
VALUES ('s', 'm', 'operator:ada', 0, 1), ('s', 'm', 'operator:free', 1, 1);
INSERT INTO tasks (id, workflow, name, status, holder, lease, lease_until, created, started, updated, checksum,
    arguments)
VALUES ('t', 'w', 'T', 'running', 'operator:ada', 1, 9999999999999, 1, 1, 1, 1649372715,
    '{"arguments":[],"keywords":{}}');
INSERT INTO approvals (task, key, name, position, status, notify, created, checksum, shown)
VALUES (1, 'go', 'go', 1, 'open', 'operator:ada', 1, 2212294583, '1');
INSERT INTO events (at, kind, subject_kind, subject, actor)
VALUES (1, 'agent_registered', 'agent', 'operator:ada', 'operator:ada');
INSERT INTO counters (name, value) VALUES ('sent/operator:ada', 7);
UPDATE counters SET value = 4 WHERE name = 'message' AND value < 4;
UPDATE counters SET value = 2 WHERE name = 'change';
""".replace("$sum", _SUM).replace("$longest", LONGEST)
CASES = [
    ("SELECT 1;", "operator-"),
    (
        "INSERT INTO mailboxes (kind, name, owner, created) VALUES ('agent', 'operator-1', 'operator-1', 1);",
        "operator.",
    ),
]
"""A further statement, which may take the first of the new prefixes, and the prefix of the new ids."""


async def check_renamed(bus: Bus, prefix: str) -> None:
    """The agents and all that belongs to them have new ids, which ``prefix`` starts; the names of people are free."""
    ada = f"{prefix}ada"
    events = [event async for event in bus.events(kind="agent_renamed")]
    longest = prefix + "x" * 119
    assert {event.subject: event.facts["before"] for event in events} == {ada: "operator:ada", longest: LONGEST}
    record = await bus.agents.get(ada)
    assert record is not None
    assert (record.name, record.epoch, record.session, record.status) == (ada, 3, "s", "running")
    assert await bus.agents.get("operator:ada") is None
    other, long = await bus.agents.get("b"), await bus.agents.get(longest)
    assert other is not None
    assert long is not None
    assert (other.parent, long.name) == (ada, "Longest")
    messages = {one.id: one for one in (await bus.messages.list()).items}
    assert {id: (one.sender, one.recipient, one.holder) for id, one in messages.items()} == {
        1: ("b", ada, None), 2: (ada, "b", None), 3: ("b", "pool:operator:pool", ada), 4: ("b", "topic:news", None),
    }  # fmt: skip
    entry = await bus.state(ada).entry("k")
    assert entry is not None
    assert (entry.value, entry.author) == (1, ada)
    # No agent had this name: it is a scope of its own.
    assert await bus.state("operator:free").get("k") == 1
    assert [one.owner for one in (await bus.checkpoints.list()).items] == ["operator:ada", ada]
    session = await bus.sessions.open("s")
    assert await session.missing() == {"operator:free": "notes", "b": "c"}
    assert [one.author for one in await session.documents()] == [ada]
    assert [one.name for meeting in await session.meetings() for one in meeting.members] == [ada, "operator:free"]
    task = await bus.tasks.get("t")
    assert task is not None
    assert task.holder == ada
    assert [check for check in await bus.doctor() if check.status == "error"] == []
    # It continues under its new id, with its mailboxes; the old incarnation is fenced.
    agent = await bus.register(ada, type="worker", takeover=True)
    assert agent.epoch == 4
    assert sorted(one.sender for one in await agent.receive_many(5, timeout=5)) == ["b", "b", "b"]
    for name in ("operator:ada", "operator:new"):
        with pytest.raises(InvalidName, match="people"):
            await bus.register(name, type="worker")
    # A person of that name has a mailbox of its own, which is empty.
    await bus.messages.send(ada, "note", 5, by="ada")
    message = await agent.receive(timeout=5)
    assert message is not None
    assert message.sender == "operator:ada"
    await message.reply("note", 6)
    replies = (await bus.messages.list(to="operator:ada")).items
    assert [one.payload for one in replies] == [6]
