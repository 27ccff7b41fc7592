"""The shapes of the JSON that commands print are pinned: programs rely on them.

``python -m tests.cli.test_output_shapes`` writes ``shapes.json`` again, to be reviewed and committed.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from agentbus import HistoryPut
from agentbus.sync.bus import open_bus
from tests.api.legacy_files import session
from tests.api.legacy_files import write as write_json
from tests.cli.conftest import Shell
from tests.cli.task_workers import add_module, begun, start

FILE = Path(__file__).with_name("shapes.json")

# Name, words, exit code; run in this order as agent "a", on a bus where "a" and "b" are registered.
CALLS: list[tuple[str, tuple[str, ...], int]] = [
    ("init", ("init",), 0),
    ("register", ("register", "c", "--type", "worker", "--pool", "p"), 0),
    ("heartbeat", ("heartbeat",), 0),
    ("progress", ("progress", "40", "half"), 0),
    ("busy", ("busy", "60"), 0),
    ("send", ("send", "a", "note", '{"n": 1}', "--priority", "9"), 0),
    ("receive", ("receive",), 0),
    ("receive --held", ("receive", "--held"), 0),
    ("receive nothing", ("receive",), 4),
    ("nack", ("nack", "m-1", "--delay", "0"), 0),
    ("receive again", ("receive",), 0),
    ("ack", ("ack", "m-1"), 0),
    ("reply", ("reply", "m-1", "note", "1"), 0),
    ("wait", ("wait", "--timeout", "0"), 0),
    ("wait --for", ("wait", "--for", "b", "--timeout", "0"), 0),
    ("expect", ("expect", "later", "--type", "worker", "--within", "60"), 0),
    ("declare", ("declare", "pool:later", "topic:later"), 0),
    ("reject", ("reject", "m-1", "--error", "no"), 1),
    ("request", ("request", "b", "note", "1", "--timeout", "0.01"), 4),
    ("messages list", ("messages", "list"), 0),
    ("messages show", ("messages", "show", "m-1"), 0),
    ("messages dead", ("messages", "dead"), 0),
    ("messages purge", ("messages", "purge"), 0),
    ("send --wait-seen", ("send", "a", "note", "1", "--wait-seen", "0"), 4),
    ("watch", ("watch", "--max", "1"), 0),
    ("steer as an agent", ("steer", "b", "faster"), 2),
    ("state set", ("state", "set", "k", "1"), 0),
    ("state get", ("state", "get", "k"), 0),
    ("state get nothing", ("state", "get", "none"), 4),
    ("state list", ("state", "list"), 0),
    ("state watch", ("state", "watch", "--max", "1"), 0),
    ("state increment", ("state", "increment", "k"), 0),
    ("state delete", ("state", "delete", "k"), 0),
    ("agents list", ("agents", "list"), 0),
    ("agents show", ("agents", "show", "a"), 0),
    ("agents find", ("agents", "find", "none"), 4),
    ("agents clear", ("agents", "clear"), 0),
    ("status", ("status",), 0),
    ("export", ("export", "bus.jsonl.gz"), 0),
    ("import", ("import", "bus.jsonl.gz"), 0),
    ("import nothing", ("import", "nothing"), 1),
    ("copy", ("copy", ".agentbus", "copy"), 0),
    ("copy again", ("copy", ".agentbus", "copy"), 1),
    ("unknown agent", ("agents", "show", "nobody"), 4),
    ("unknown recipient", ("send", "nobody", "note"), 1),
    ("invalid JSON", ("send", "a", "note", "{"), 2),
    ("misspelt", ("sned",), 2),
    ("run", ("run", "--agent", "r", "--", "true"), 0),
    ("complete", ("complete",), 0),
]
# What is kept, on another bus where "a" and "b" are registered.
KEEPING: list[tuple[str, tuple[str, ...], int]] = [
    ("session start", ("session", "start", "planning", "--id", "s", "--expect", "a=plan", "--agent", "b"), 0),
    ("register in a session", ("register", "d", "--type", "worker", "--session", "s", "--parent", "a"), 0),
    ("session join", ("session", "join", "s", "--agent", "b"), 0),
    ("session progress", ("session", "progress", "10", "s"), 0),
    ("session pause", ("session", "pause", "s"), 0),
    ("session continue", ("session", "continue", "s"), 0),
    ("document save", ("document", "save", "plan", "1", "--session", "s"), 0),
    ("document show", ("document", "show", "plan", "--session", "s"), 0),
    ("document list", ("document", "list", "--session", "s"), 0),
    ("document history", ("document", "history", "plan", "--session", "s"), 0),
    ("document export", ("document", "export", "plan", "plan.json", "--session", "s"), 0),
    ("checkpoint create", ("checkpoint", "create", "x", "1", "--file", "plan.json"), 0),
    ("checkpoint create --all", ("checkpoint", "create", "x", "--all", "--of", "session:s"), 0),
    ("checkpoint list", ("checkpoint", "list"), 0),
    ("checkpoint show", ("checkpoint", "show", "1"), 0),
    ("checkpoint restore", ("checkpoint", "restore"), 0),
    ("checkpoint verify", ("checkpoint", "verify", "1"), 0),
    ("checkpoint prune", ("checkpoint", "prune", "--keep", "1"), 0),
    ("histories list", ("histories", "list"), 0),
    ("histories show", ("histories", "show", "k", "h", "--bodies"), 0),
    ("histories show nothing", ("histories", "show", "k", "none"), 4),
    ("histories delete", ("histories", "delete", "k", "h"), 0),
    ("complete in a session", ("complete", "--agent", "b"), 0),
    ("fail of another", ("fail", "no", "--agent", "d"), 0),
    ("session status", ("session", "status", "s"), 0),
    ("session list", ("session", "list"), 0),
    ("session interrupted", ("session", "interrupted"), 0),
    ("session recover", ("session", "recover", "s"), 0),
    ("session recover --rollback", ("session", "recover", "s", "--rollback", "2"), 0),
    ("recovery check", ("recovery", "check"), 0),
    ("recovery list", ("recovery", "list"), 0),
    ("recovery clear", ("recovery", "clear", "d"), 0),
    ("session complete", ("session", "complete", "s"), 0),
    ("session fail", ("session", "fail", "s", "too late"), 1),
    ("events", ("events", "--limit", "1"), 0),
    ("events --follow", ("events", "--follow", "--after", "0", "--max", "1"), 0),
    ("types list", ("types", "list"), 0),
    ("types add", ("types", "add", "zebra"), 0),
    ("types show", ("types", "show", "zebra"), 0),
    ("monitor --once", ("monitor", "--once"), 0),
    ("backup create", ("backup", "create"), 0),
    ("backup list", ("backup", "list"), 0),
    ("doctor", ("doctor",), 0),
    ("cleanup", ("cleanup", "--stale", "0"), 0),
    ("quotas", ("quotas", "--depth", "1000", "--by", "ada"), 0),
    ("metrics", ("metrics",), 0),
    ("metrics --output", ("metrics", "--output", "agentbus.prom"), 0),
    ("prime", ("prime",), 0),
    ("import a session", ("import", "old"), 0),
    ("session recover with a meeting", ("session", "recover", "session-20240115"), 0),
    ("session recover --resume", ("session", "recover", "session-20240115", "--resume"), 0),
    ("session participants", ("session", "participants", "session-20240115"), 0),
    ("session finish", ("session", "finish", "planner-1", "1", "--session", "session-20240115"), 0),
]
# Tasks, on another one, beside a module with workflows: "f-1" waits for an approval, "b-1" has failed.
TASKS: list[tuple[str, tuple[str, ...], int]] = [
    ("task start", ("task", "start", "docs", "--id", "d-1"), 0),
    ("worker", ("worker", "flows:docs", "--until-idle"), 0),
    ("task list", ("task", "list"), 0),
    ("task show", ("task", "show", "f-1"), 0),
    ("task show failed", ("task", "show", "b-1"), 0),
    ("task show nothing", ("task", "show", "none"), 4),
    ("task approvals", ("task", "approvals"), 0),
    ("status with tasks", ("status",), 0),
    ("task wait", ("task", "wait", "d-1"), 0),
    ("task wait in vain", ("task", "wait", "f-1", "--timeout", "0"), 4),
    ("task resumable", ("task", "resumable"), 0),
    ("task log", ("task", "log", "f-1", "--limit", "1"), 0),
    ("task stats", ("task", "stats"), 0),
    ("task approve by an agent", ("task", "approve", "f-1"), 2),
    ("task approve", ("task", "approve", "f-1", "--by", "ada"), 0),
    ("task reject", ("task", "reject", "f-1", "--by", "ada", "--reason", "no"), 1),
    ("task settle", ("task", "settle", "f-1", "plan", "--redo", "--by", "ada"), 1),
    ("task halt", ("task", "halt", "f-1"), 0),
    ("task continue", ("task", "continue", "f-1"), 0),
    ("task auto", ("task", "auto", "f-1", "off"), 0),
    ("task stop", ("task", "stop", "f-1"), 0),
    ("task resume", ("task", "resume", "f-1"), 0),
    ("task redo", ("task", "redo", "f-1", "plan"), 0),
    ("task restart", ("task", "restart", "f-1"), 0),
    ("task edit", ("task", "edit", "f-1", "--name", "x"), 0),
    ("task signal", ("task", "signal", "f-1", "go", "1", "--by", "ada"), 0),
    ("task signal ended", ("task", "signal", "d-1", "go"), 1),
    ("task query", ("task", "query", "f-1"), 0),
    ("task query nothing", ("task", "query", "f-1", "none"), 4),
    ("send to a task", ("send", "task:f-1", "note", "1"), 0),
    ("task start --manual", ("task", "start", "--manual", "review", '{"n": 1}', "--id", "r-1"), 0),
    ("task start --after", ("task", "start", "--manual", "merge", "--id", "m-1", "--after", "r-1"), 0),
    ("task ready", ("task", "ready", "--manual"), 0),
    ("task ready nothing", ("task", "ready", "--workflow", "none"), 4),
    ("task show blocked", ("task", "show", "m-1"), 0),
    ("task take", ("task", "take"), 0),
    ("task take --held", ("task", "take", "--held"), 0),
    ("task take nothing", ("task", "take"), 4),
    ("task take another's", ("task", "take", "r-1", "--agent", "b"), 1),
    ("task progress", ("task", "progress", "r-1", "40", "half"), 0),
    ("task release", ("task", "release", "r-1#1", "--note", "half"), 0),
    ("task take again", ("task", "take", "r-1"), 0),
    ("task finish", ("task", "finish", "r-1", '{"ok": true}'), 0),
    ("task take dependent", ("task", "take"), 0),
    ("task fail", ("task", "fail", "m-1", "no"), 0),
]
ALL = {"messages": CALLS, "keeping": KEEPING, "tasks": TASKS}


def shape(value: Any) -> Any:
    """Return the shape of a value: names and kinds, no contents; of a list, the shape of its first item."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return "null" if value is None else type(value).__name__


def shapes(shell: Shell, part: str) -> dict[str, Any]:
    for agent in ("a", "b"):
        shell.register(agent)
    if part == "tasks":
        add_module(shell)
        start(shell, "broken", id="b-1")
        begun(shell)
    if part == "keeping":
        write_json(shell.directory / "old" / "current_session.json", session())
        with open_bus(shell.directory / ".agentbus") as bus:
            bus.do(bus.histories.write("k", "h", [HistoryPut(body=b"{}", meta={"n": 1})]))
    found: dict[str, Any] = {}
    for name, words, code in ALL[part]:
        # Only a person decides.
        outcome = shell.run("--json", *words, agent=None if "--by" in words else "a")
        assert outcome.code == code, (name, outcome)
        found[name] = {"code": code, "json": shape(json.loads(outcome.out.splitlines()[0]))}
    return found


@pytest.mark.parametrize("part", ALL)
def test_the_json_of_every_command_has_its_shape(shell: Shell, part: str) -> None:
    pinned = json.loads(FILE.read_text())
    assert shapes(shell, part) == {name: pinned[name] for name, *_ in ALL[part]}


def test_nothing_else_is_pinned() -> None:
    named = [name for calls in ALL.values() for name, *_ in calls]
    assert list(json.loads(FILE.read_text())) == named
    assert len(set(named)) == len(named)


def write() -> None:
    found: dict[str, Any] = {}
    for part in ALL:
        with tempfile.TemporaryDirectory(prefix="agentbus-cli-") as directory:
            open_bus(Path(directory) / ".agentbus", create=True).close()
            found |= shapes(Shell(Path(directory)), part)
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    write()
