"""Commands of agents in a session: join and leave it, list what they hold, text beside JSON."""

from __future__ import annotations

from agentbus.sync.bus import open_bus
from tests.cli.conftest import Shell


def test_the_agent_that_starts_a_session_joins_it(shell: Shell) -> None:
    me = shell.register("a")
    assert shell.json("session", "start", "planning", "--id", "s", agent=me)["joined"] is True
    # In the same life, and so for what needs no session to be named.
    assert shell.say("document", "save", "plan", "1", agent=me) == "1"
    with open_bus(shell.directory / ".agentbus") as bus:
        record = bus.do(bus.agents.get("a"))
        assert record is not None
        assert (record.session, record.epoch) == ("s", 1)
        (event,) = bus.events(kind="agent_joined")
        assert (event.subject, event.actor, event.facts) == ("a", "a", {"session": "s"})
    other = shell.run("session", "start", "building", "--id", "t", "--json", agent=me)
    assert '"joined":false' in other.out
    assert "agentbus session join t" in other.err
    assert shell.json("session", "start", "testing", "--id", "u")["joined"] is False


def test_an_agent_joins_a_session_in_the_same_life(shell: Shell) -> None:
    me = shell.register("a")
    with open_bus(shell.directory / ".agentbus") as bus:
        bus.start_session("planning", id="s")
        bus.start_session("building", id="t")
        bus.do(bus.do(bus.sessions.open("s")).pause())
        bus.register("f", type="worker", session="t").fail("crashed")
    assert shell.json("session", "join", "t", agent=me) == {"id": "t", "agent": me, "left": None}
    with open_bus(shell.directory / ".agentbus") as bus:
        # It continues, because an agent is in it, and is interrupted again when that agent leaves.
        assert [one.status for one in bus.do(bus.sessions.list()).items if one.id == "t"] == ["active"]
        assert bus.agent(me).join("s") == "t"
        assert {one.id: one.status for one in bus.do(bus.sessions.list()).items} == {"s": "paused", "t": "interrupted"}
        assert bus.agent(me).join("s") is None
    assert shell.refused("session", "join", "nowhere", agent=me, code=1)["code"] == "unknown_session"
    assert shell.refused("session", "join", "no name", agent=me, code=2)["code"] == "invalid_name"
    assert shell.refused("session", "join", "s", code=2)["code"] == "no_identity"
    shell.register("a", takeover=True)
    assert shell.refused("session", "join", "s", agent=me, code=1)["code"] == "agent_fenced"
    # Nothing begins by the hand of one that is over.
    assert shell.refused("session", "start", "x", "--id", "x", agent=me, code=1)["code"] == "agent_fenced"
    assert shell.refused("session", "status", "x", code=4)["code"] == "unknown_session"


def test_what_an_agent_holds_can_be_asked_for(shell: Shell) -> None:
    me, other = shell.register("a", pools=("p",)), shell.register("b")
    assert shell.run("receive", "--held", agent=me).code == 4
    with open_bus(shell.directory / ".agentbus") as bus:
        for number in (1, 2, 3):
            bus.agent(other).send("pool:p" if number < 3 else "b", "note", {"n": number})
        taken = bus.agent(me).receive_many(5)
        bus.agent(other).receive_many(5)
        assert bus.agent(me).in_hand() == taken
    rows = [line.split("\t") for line in shell.say("receive", "--held", agent=me).splitlines()]
    assert [(row[0], row[4]) for row in rows] == [("m-1#1", '{"n":1}'), ("m-2#1", '{"n":2}')]
    assert len(shell.json("receive", "--held", "--max", "1", agent=me)) == 1
    listed = shell.json("messages", "list", "--holder", "a")["items"]
    assert [one["message_id"] for one in listed] == ["m-2", "m-1"]
    shell.say("ack", "m-1#1", agent=me)
    assert [one["message_id"] for one in shell.json("messages", "list", "--holder", "a")["items"]] == ["m-2"]
    assert shell.refused("receive", "--held", "--peek", agent=me, code=2)["code"] == "usage"


def test_one_that_is_over_may_not_even_look_what_waits_for_it(shell: Shell) -> None:
    me = shell.register("a")
    with open_bus(shell.directory / ".agentbus") as bus:
        bus.agent(me).stop()
    for option in ("--peek", "--held"):
        assert shell.refused("receive", option, agent=me, code=1)["code"] == "agent_fenced"


def test_a_text_is_taken_as_it_is(shell: Shell) -> None:
    me = shell.register("a", session=None)
    plan = "# Plan\n\n1. \tsay \"so\" \\ 'thus'\n"
    (shell.directory / "plan.md").write_text(plan)
    shell.say("session", "start", "planning", "--id", "s", agent=me)
    shell.say("document", "save", "plan", "@plan.md", "--text", agent=me)
    assert shell.run("document", "show", "plan", agent=me).out == plan + "\n"
    shell.say("checkpoint", "create", "c", "-", "--text", agent=me, input=b"1")
    assert shell.json("checkpoint", "restore", agent=me)["snapshot"] == "1"
    shell.say("state", "set", "k", plan, "--text", agent=me)
    # What was got can be set again.
    got = shell.run("state", "get", "k", agent=me).out.removesuffix("\n")
    assert got == plan
    shell.say("send", "a", "note", got, "--text", agent=me)
    (message,) = shell.json("receive", agent=me)
    assert message["payload"] == plan
    shell.say("reply", message["lease"], "note", "@plan.md", "--text", agent=me)
    assert shell.json("receive", agent=me)[0]["payload"] == plan


def test_what_is_no_json_is_told_how_it_could_be_a_text(shell: Shell) -> None:
    me = shell.register("a", session=None)
    (shell.directory / "plan.md").write_text("# Plan")
    file = shell.refused("state", "set", "k", "@plan.md", agent=me, code=2)
    assert file["message"].startswith("plan.md is not JSON")
    assert "--text" in file["fix"]
    inline = shell.refused("send", "a", "note", "hello", agent=me, code=2)
    assert "quote JSON for the shell" in inline["fix"]
    assert "--text" in inline["fix"]
    # What must be JSON does not offer it.
    assert "--text" not in shell.refused("session", "start", "x", "--metadata", "{", agent=me, code=2)["fix"]


def test_what_is_not_there_differs_from_a_stored_null(shell: Shell) -> None:
    me = shell.register("a")
    shell.say("state", "set", "k", "null", agent=me)
    assert shell.json("state", "get", "k", agent=me)["value"] is None
    assert shell.say("state", "get", "k", agent=me) == "null"
    assert shell.json("state", "get", "none", agent=me, code=4)["code"] == "nothing_there"
    nothing = shell.run("state", "get", "none", agent=me)
    assert (nothing.code, nothing.out) == (4, "")
    assert nothing.err.startswith("agentbus: a has no entry 'none'")


def test_settling_twice_names_the_first_outcome(shell: Shell) -> None:
    me, other = shell.register("a"), shell.register("b")
    with open_bus(shell.directory / ".agentbus") as bus:
        for number in (1, 2, 3):
            bus.agent(other).send("a", "note", number)
        bus.agent(me).receive_many(3)
        bus.agent(me).nack("m-2", delay=0)
        bus.agent(me).reject("m-3", error="no")
    shell.say("ack", "m-1#1", agent=me)
    # Once more, after a lost shell.
    again = shell.run("ack", "m-1#1", agent=me)
    assert (again.code, again.err.split()[0]) == (0, "m-1#1")
    told = {
        words: shell.refused(*words.split(), agent=me, code=1)["code"]
        for words in ("nack m-1", "reject m-1#1 --error x", "ack m-2#1", "nack m-2#1", "reject m-3 --error x")
    }
    assert set(told.values()) == {"already_settled"}
    # To anybody else it is lost, and with one that is lost nothing is acked.
    assert shell.refused("ack", "m-1", agent=other, code=1)["code"] == "lease_lost"
    assert shell.refused("ack", "m-1", "m-2#1", agent=me, code=1)["code"] == "already_settled"
