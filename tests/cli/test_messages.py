"""Messages on the command line: sent, received under a lease, settled, asked and answered."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from agentbus.core.clock import SystemClock
from tests.cli.conftest import Shell


@pytest.fixture
def pair(shell: Shell) -> Shell:
    """Two agents, a and b, in a pool."""
    for agent in ("a", "b"):
        shell.register(agent, pools=["pool"], topics=["news"])
    return shell


def test_messages_come_most_urgent_first_with_their_lease(pair: Shell) -> None:
    for priority in ("2", "9", "5"):
        pair.say("send", "b", "note", priority, "--priority", priority, agent="a")
    lines = pair.say("receive", "--max", "2", agent="b").splitlines()
    assert lines == ["m-2#1\t9\tnote\ta\t9", "m-3#1\t5\tnote\ta\t5"]
    assert pair.say("receive", "--peek", "--max", "5", agent="b") == "-\t2\tnote\ta\t2"
    assert pair.say("receive", "--ack", agent="b") == "m-1#1\t2\tnote\ta\t2"
    assert pair.json("receive", agent="b", code=4) == []
    pair.say("ack", "m-2", "m-3#1", agent="b")
    statuses = {item["message_id"]: item["status"] for item in pair.json("messages")["items"]}
    assert statuses == {"m-1": "acked", "m-2": "acked", "m-3": "acked"}


def test_payloads_come_from_arguments_files_and_standard_input(pair: Shell) -> None:
    (pair.directory / "plan.json").write_text('{"text": "grün"}')
    pair.say("send", "b", "note", "@plan.json", agent="a")
    pair.say("send", "b", "note", "-", agent="a", input=b'{"text": "blau"}')
    pair.say("send", "b", "note", agent="a")
    received = pair.json("receive", "--max", "3", agent="b")
    assert [message["payload"] for message in received] == [{"text": "grün"}, {"text": "blau"}, None]


def test_sending_has_options(pair: Shell) -> None:
    assert pair.json("send", "b", "note", "1", "--id", "mine", agent="a")["duplicate"] is False
    assert pair.json("send", "b", "note", "1", "--id", "mine", agent="a")["duplicate"] is True
    assert pair.json("send", "b", "note", "2", "--id", "mine", agent="a", code=1)["code"] == "message_id_conflict"
    assert pair.json("send", "pool", "note", "1", "--pool", agent="a")["delivered"] == 1
    assert pair.json("send", "news", "note", "1", "--topic", agent="a")["delivered"] == 2
    pair.say("send", "b", "note", "3", "--delay", "60", "--ttl", "60", "--max-attempts", "1", agent="a")
    record = pair.json("messages", "list", "--status", "scheduled")["items"][0]
    shown = pair.json("messages", "show", record["message_id"])
    assert shown["expires"] - shown["due"] == 60_000
    assert shown["max_attempts"] == 1
    assert pair.run("send", "b", "note", "1", "--pool", "--topic", agent="a").code == 2


def test_headers_are_given_by_name(pair: Shell) -> None:
    options = ("--header", "trace=a=b", "--header", "empty=")
    pair.say("send", "b", "note", "1", *options, agent="a")
    (message,) = pair.json("receive", agent="b")
    assert message["headers"] == {"trace": "a=b", "empty": ""}
    assert pair.json("messages", "show", message["message_id"])["headers"] == message["headers"]
    for wrong in (
        ("--header", "trace"),
        ("--header", "trace=1", "--header", "trace=2"),
        ("--header", "trace=" + "x" * 5000),
    ):
        error = pair.refused("send", "b", "note", "1", *wrong, agent="a", code=2)
        assert "'trace'" in error["message"]


def test_a_payload_that_must_be_too_large_is_not_read(pair: Shell) -> None:
    pair.environment["AGENTBUS_MAX_PAYLOAD"] = "1000"
    # A hole: a file of 4 GiB that takes no space. Reading it would exhaust the memory.
    with open(pair.directory / "hole", "wb") as file:
        file.truncate(4 * 1024**3)
    error = pair.refused("send", "b", "note", "@hole", agent="a", code=2)
    assert (error["code"], "4294967296 bytes" in error["message"]) == ("payload_too_large", True)
    assert pair.refused("document", "save", "plan", "@hole", agent="a", code=2)["code"] == "snapshot_too_large"
    with open(pair.directory / "hole", "wb") as file:
        file.truncate(17 * 1024**2)
    for words in (
        ("register", "c", "--type", "worker", "--metadata"), ("session", "start", "planning", "--metadata"),
        ("task", "start", "feature", "--context"), ("task", "start", "--manual", "fix"),
    ):  # fmt: skip
        assert pair.refused(*words, "@hole", code=2)["code"] == "payload_too_large"
    # Indented JSON may be larger than the payload.
    pair.say("send", "b", "note", "-", agent="a", input=b"[1,\n" + b" " * 5000 + b"2]")
    assert pair.run("send", "b", "note", "-", "--text", agent="a", input=b"x" * 1100).code == 2
    assert pair.json("receive", agent="b")[0]["payload"] == [1, 2]


def test_a_command_waits_for_an_agent(pair: Shell) -> None:
    assert pair.told("wait", "--for", "a") == {"agent": "a", "status": "running", "reached": True}
    late = ("wait", "--for", "late", "--timeout", "0")
    assert pair.told(*late, code=4) == {"agent": "late", "status": None, "reached": False}
    pair.say("expect", "late", "--type", "worker")
    assert pair.told(*late, code=4)["status"] == "pending"
    waiting = pair.start("wait", "--for", "late", "--status", "completed,failed", "--json")
    try:
        me = pair.say("register", "late", "--type", "worker")
        assert pair.told(*late)["reached"] is True
        pair.say("fail", "no", agent=me)
        out, err = waiting.communicate(timeout=30)
    finally:
        waiting.kill()
    assert (waiting.returncode, b'"status":"failed"' in out) == (0, True), err
    assert pair.refused("wait", "--for", "a", "--status", "asleep", code=2)["code"] == "out_of_range"
    assert pair.refused("wait", "--status", "running", agent="a", code=2)["code"] == "usage"


def test_a_pool_and_a_topic_are_declared(pair: Shell) -> None:
    pair.say("declare", "pool:jobs", "topic:plans")
    pair.say("declare", "pool:jobs")
    assert pair.json("send", "pool:jobs", "note", agent="a")["delivered"] == 1
    assert pair.json("send", "topic:plans", "note", agent="a")["delivered"] == 0
    error = pair.refused("declare", "jobs", code=2)
    assert (error["code"], "pool:jobs" in error["fix"]) == ("usage", True)


def test_very_long_words_are_shown_in_part(pair: Shell) -> None:
    long = "x" * 5000
    for words in (
        ("agents", "show", long), (long,), ("agents", long), ("send", "b", long), ("receive", "--wait", long),
        ("messages", "list", "--limit", long), ("status", long), ("status", f"--{long}"), ("state", "get", long),
        ("send", "b", "note", "--header", long), ("task", "start", "w", "--keyword", long),
        ("types", "show", long), ("worker", long),
    ):  # fmt: skip
        outcome = pair.run(*words, agent="a")
        assert outcome.code == (4 if words[0] == "types" else 2), words
        assert 0 < len(outcome.err) < 1500, (words, len(outcome.err))
        assert "characters)" in outcome.err, words


def test_a_message_is_given_back_or_rejected(pair: Shell) -> None:
    pair.say("send", "b", "note", "1", agent="a")
    pair.say("receive", agent="b")
    pair.say("nack", "m-1#1", "--delay", "0", "--error", "busy", agent="b")
    (again,) = pair.json("receive", agent="b")
    assert (again["lease"], again["attempts"]) == ("m-1#2", 2)
    pair.say("reject", again["lease"], "--error", "no such file", agent="b")
    assert pair.say("messages", "dead").split("\t")[-1] == "no such file"
    assert pair.say("messages", "requeue", "m-1") == "1"
    assert pair.say("receive", "--ack", agent="b")
    assert pair.say("messages", "purge") == "1"
    assert pair.run("messages", "show", "m-1").code == 4


def test_nack_says_which_messages_became_dead_letters(pair: Shell) -> None:
    pair.say("send", "b", "note", "1", "--max-attempts", "1", agent="a")
    pair.say("send", "b", "note", "2", agent="a")
    pair.say("receive", "--max", "2", agent="b")
    done = pair.json("nack", "m-1", "m-2", agent="b")
    assert [(one["message"], one["status"]) for one in done] == [("m-1", "dead"), ("m-2", "given back")]
    assert pair.say("messages", "dead").startswith("m-1\t")


def test_a_lease_that_is_lost_settles_nothing(pair: Shell) -> None:
    pair.say("send", "pool:pool", "note", "1", agent="a")
    (mine,) = pair.json("receive", "--lease", "0.05", agent="a")
    (theirs,) = pair.json("receive", "--wait", "10", agent="b")
    assert (mine["lease"], theirs["lease"]) == ("m-1#1", "m-1#2")
    for words in (("ack",), ("nack",), ("reject", "--error", "x")):
        error = pair.json(words[0], mine["lease"], *words[1:], agent="a", code=1)
        assert error["code"] == "lease_lost"
    error = pair.json("reply", mine["lease"], "note", agent="a", code=1)
    assert error["code"] == "lease_lost"
    assert "held by b" in error["message"]
    assert pair.json("ack", "m-1#1", agent="b", code=1)["code"] == "lease_lost"
    assert pair.json("ack", "m-99", agent="b", code=1)["code"] == "unknown_message"
    assert pair.json("messages", "show", "m-1")["status"] == "leased"
    # All, or none.
    pair.say("send", "b", "note", "2", agent="a")
    pair.say("receive", agent="b")
    assert pair.run("ack", "m-2", "m-1#1", agent="b").code == 1
    assert pair.json("messages", "show", "m-2")["status"] == "leased"


def test_every_call_extends_what_is_held(pair: Shell) -> None:
    pair.say("send", "pool:pool", "note", "1", agent="a")
    pair.say("receive", "--lease", "0.05", agent="a")
    pair.say("heartbeat", agent="a")
    assert pair.run("receive", "--wait", "0.1", agent="b").code == 4
    pair.say("ack", "m-1", agent="a")


def test_a_request_is_answered(pair: Shell) -> None:
    asking = pair.start(
        "request", "b", "coordination_request", '{"q": "ready?"}', "--timeout", "30", "--json", agent="a"
    )
    (question,) = pair.json("receive", "--wait", "30", agent="b")
    assert question["wants_reply"] is True
    pair.say("reply", question["lease"], "coordination_response", '{"ready": true}', agent="b")
    out, err = asking.communicate(timeout=30)
    assert asking.returncode == 0, err
    assert b'"payload":{"ready":true}' in out
    # Answered and acknowledged in one commit.
    assert pair.json("messages", "show", question["message_id"])["status"] == "acked"


def test_a_request_may_fail(pair: Shell) -> None:
    assert pair.json("request", "b", "note", "1", "--timeout", "0.05", agent="a", code=4)["code"] == "request_timed_out"
    asking = pair.start("request", "b", "note", "1", "--timeout", "30", "--json", agent="a")
    (question,) = pair.json("receive", "--wait", "30", agent="b")
    pair.say("reject", question["lease"], "--error", "never", agent="b")
    out, _ = asking.communicate(timeout=30)
    assert asking.returncode == 1
    assert b"request_died" in out


def test_a_reply_may_leave_the_message_open_or_come_after_it(pair: Shell) -> None:
    pair.say("send", "b", "note", "1", agent="a")
    (message,) = pair.json("receive", agent="b")
    pair.say("reply", message["lease"], "note", '"half"', "--keep", agent="b")
    pair.say("ack", message["lease"], agent="b")
    pair.say("reply", message["message_id"], "note", '"done"', agent="b")
    received = pair.json("receive", "--max", "5", agent="a")
    assert [(one["payload"], one["correlation"]) for one in received] == [("half", "m-1"), ("done", "m-1")]
    assert pair.json("reply", "m-77", "note", agent="b", code=1)["code"] == "unknown_message"


def test_waiting_takes_nothing(pair: Shell) -> None:
    assert pair.run("wait", "--timeout", "0.05", agent="b").code == 4
    waiting = pair.start("wait", "--timeout", "30", agent="b")
    pair.say("send", "b", "note", "1", agent="a")
    assert waiting.wait(30) == 0
    waiting.communicate()
    assert pair.json("wait", agent="b") == {"pending": True}
    assert pair.json("messages", "show", "m-1")["status"] == "queued"


def test_payloads_are_checked_against_the_schema_of_their_type(pair: Shell) -> None:
    import agentbus

    async def define() -> None:
        async with agentbus.connect(pair.directory / ".agentbus") as bus:
            await bus.define("result", schema={"type": "object", "required": ["url"]})

    import anyio

    anyio.run(define)
    pair.say("send", "b", "result", '{"url": "x"}', agent="a")
    error = pair.json("send", "b", "result", '{"uri": "x"}', agent="a", code=2)
    assert error["code"] == "invalid_payload"
    assert "url" in error["message"]
    (message,) = pair.json("receive", agent="b")
    assert pair.json("reply", message["lease"], "result", "1", agent="b", code=2)["code"] == "invalid_payload"
    assert pair.json("messages", "show", message["message_id"])["status"] == "leased"


def test_an_unknown_recipient_or_type_says_what_was_meant(pair: Shell) -> None:
    pair.register("executor-1", type="executor")
    error = pair.json("send", "executor-2", "note", agent="a", code=1)
    assert (error["code"], "executor-1" in error["message"]) == ("unknown_recipient", True)
    error = pair.json("send", "b", "nota", agent="a", code=2)
    assert (error["code"], "note" in error["message"]) == ("unknown_type", True)


def bells(directory: Path) -> list[Path]:
    return list((directory / ".agentbus" / "bells").iterdir())


def test_waiting_is_asleep_on_a_bell_and_leaves_nothing_behind(pair: Shell) -> None:
    waiting = pair.start("receive", "--wait", "60", agent="b")
    try:
        deadline = time.monotonic() + 30
        while not (pair.directory / ".agentbus" / "bells").is_dir() or not bells(pair.directory):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        pair.say("send", "b", "note", "1", agent="a")
        begun = time.monotonic()
        out, err = waiting.communicate(timeout=30)
        assert time.monotonic() - begun < 25
        assert (waiting.returncode, out) == (0, b"m-1#1\t5\tnote\ta\t1\n"), err
        assert bells(pair.directory) == []
    finally:
        if waiting.poll() is None:
            waiting.kill()
            waiting.wait()


def test_what_was_taken_and_not_printed_goes_back(pair: Shell) -> None:
    pair.say("send", "b", "note", "1", agent="a")
    # Closed before the command starts: it may write at once.
    reading, writing = os.pipe()
    os.close(reading)
    process = pair.start("receive", "--ack", agent="b", stdout=writing)
    os.close(writing)
    assert process.wait(30) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    record = pair.json("messages", "show", "m-1")
    assert (record["status"], record["attempts"]) == ("queued", 0)


def test_only_the_holder_of_a_message_replies(shell: Shell) -> None:
    for name in ("a", "b", "c"):
        shell.register(name)
    shell.say("send", "b", "coordination_request", "1", agent="a")
    # No agent has it yet.
    assert shell.refused("reply", "m-1", "note", "1", agent="c", code=1)["code"] == "lease_lost"
    (taken,) = shell.json("receive", agent="b")
    assert shell.refused("reply", taken["lease"], "note", "1", agent="c", code=1)["code"] == "lease_lost"
    shell.say("nack", taken["lease"], "--delay", "0", agent="b")
    # A released message has no holder.
    assert shell.refused("reply", taken["lease"], "note", "1", agent="b", code=1)["code"] == "lease_lost"
    shell.say("receive", "--ack", agent="b")
    assert shell.say("reply", "m-1", "note", "1", agent="b")
    assert [message["payload"] for message in shell.json("receive", "--max", "9", agent="a")] == [1]


def test_a_busy_agent_keeps_its_leases(shell: Shell) -> None:
    shell.register("a")
    shell.say("send", "a", "note", agent="a")
    shell.say("receive", agent="a")
    shell.say("busy", "3600", agent="a")
    shell.say("heartbeat", agent="a")
    with closing(sqlite3.connect(shell.directory / ".agentbus" / "bus.db")) as connection:
        ((left,),) = connection.execute("SELECT lease_until FROM messages")
    assert left > SystemClock().now().awake + 3_500_000


def test_looking_takes_no_other_options(shell: Shell) -> None:
    shell.register("a")
    for option in (("--ack",), ("--wait", "1")):
        assert shell.refused("receive", "--peek", *option, agent="a", code=2)["code"] == "usage"


def test_a_reply_before_the_message_was_received_names_the_step_before(shell: Shell) -> None:
    shell.register("a")
    shell.register("b")
    message = shell.say("send", "b", "note", "1", agent="a")
    for words in (("reply", message, "note", "1"), ("ack", message)):
        error = shell.refused(*words, agent="b", code=1)
        assert error["code"] == "lease_lost"
        assert "receive the message" in error["fix"]


def test_a_message_of_the_shell_joins_a_thread(shell: Shell) -> None:
    shell.register("a")
    sent = shell.say("send", "a", "note", "1", "--correlation", "plan-7", agent="a")
    assert shell.told("messages", "show", sent)["correlation"] == "plan-7"
    assert len(shell.told("messages", "list", "--correlation", "plan-7")["items"]) == 1


def test_a_payload_that_does_not_match_its_type_names_the_command_that_shows_it(shell: Shell) -> None:
    shell.register("a")
    shell.say("types", "add", "plan", "--schema", '{"type": "object"}')
    error = shell.refused("send", "a", "plan", "1", agent="a", code=2)
    assert error["code"] == "invalid_payload"
    assert "agentbus types show plan" in error["fix"]
