"""The command line on a server: the milestone story, each family of commands, and no password in what is said."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentbus.engine.postgres import health
from agentbus.operations.health import live_processes
from agentbus.sync.bus import BlockingBus, open_bus
from tests.cli.conftest import TIMEOUT, Shell
from tests.cli.task_workers import add_module
from tests.cli.test_milestone import SCRIPT
from tests.support import zygote
from tests.support.cases import each
from tests.support.guarded import SECRET, free_port, guarded_server, guest, run
from tests.support.postgres import Server

FAMILIES = """
init
status
register a --type worker --pool team --topic news --pid 1
register b --type worker
heartbeat --agent a
progress 10 begun --agent a
busy 60 --agent a
agents list
agents show a
agents find python | 4
types add zebra --description striped
types list
types show zebra
send a note {"n":1} --agent b --priority 9
send pool:team zebra 2 --agent b
send topic:news note 3 --agent b
messages list
messages show m-1
wait --timeout 1 --agent a
receive --peek --agent a
receive --agent a
receive --held --agent a
ack m-1 --agent a
receive --max 2 --agent a
nack m-2 --delay 0 --agent a
reject m-3 --error no --agent a
messages dead
messages requeue m-3
messages purge
state set k {"x":1} --agent a
state get k --agent a
state list --agent a
state delete k --agent a
session start planning --id s --milestone ms-1
session join s --agent a
session progress 50 s
session status s
session list
document save plan {"steps":2} --session s
document show plan --session s
document list --session s
document history plan --session s
document export plan plan.json --session s
checkpoint create x {"at":1} --file plan.json --agent a
checkpoint create y --all --of session:s
checkpoint list --agent a
checkpoint show 1
checkpoint restore x --agent a
checkpoint verify 1
checkpoint prune --keep 1 --agent a
session pause s
session continue s
session interrupted
session recover s
recovery check
recovery list
recovery clear
events
monitor --once
cleanup --dry-run
cleanup --stale 600
export s.jsonl.gz --session s
export all.jsonl.gz
import all.jsonl.gz
doctor
backup | 1
backup list | 1
backup restore x.dump | 1
prime
complete --agent a
fail --agent b broken
task start feature 1 --id t --session s
task list
task show t
task approvals
task approve t --by ada | 1
task halt t
task continue t
task auto t on --by ada
task auto t off
task stop t
task resumable
task resume t
task restart t
task edit t --name x
task wait t --timeout 0.01 | 4
task log t
task stats
session complete s
agents delete b
agents clear
completion bash
"""
"""A call on each line, and the exit code where it is not 0. Pid 1 is a process that is there."""

PROGRAM = """
import contextlib, io, json, sys
from agentbus.cli.main import main
for line in sys.stdin.read().splitlines():
    printed, told = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
        code = main(line.split())
    print(json.dumps([line, code, printed.buffer.getvalue().decode(), told.buffer.getvalue().decode()]))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with guarded_server() as server:
        yield server


class Remote(Shell):
    """A directory without a bus, whose bus is on a server that asks for a password."""

    def __init__(self, directory: Path, url: str) -> None:
        super().__init__(directory)
        self.url = url
        self.environment |= {"AGENTBUS_URL": url, "XDG_STATE_HOME": str(directory / "kept")}
        self.environment["PATH"] = zygote.search_path(self.environment)

    def open(self) -> BlockingBus:
        return open_bus(self.url, create=True)


@pytest.fixture
def remote(server: Server) -> Iterator[Remote]:
    """A schema of its own, without a bus."""
    name = f"bus_{time.monotonic_ns()}"
    run(server.url, f"CREATE SCHEMA {name} AUTHORIZATION guest")
    with tempfile.TemporaryDirectory(prefix="agentbus-cli-") as directory:
        yield Remote(Path(directory), guest(server, more=f"?sslmode=disable&schema={name}"))


def stored(server: Server, schema: str) -> str:
    """Every row of every table of a bus."""
    (tables,) = run(
        server.url, f"SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = '{schema}'::regnamespace"
    )
    found = run(server.url, *(f'SELECT to_json(t)::text FROM {schema}."{name}" AS t' for (name,) in tables))
    return "\n".join(row[0] for rows in found for row in rows)


def test_a_shell_script_plays_the_milestone_story(remote: Remote) -> None:
    done = subprocess.run(
        ["sh", str(SCRIPT)],
        cwd=remote.directory,
        env=remote.environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.splitlines()[-1] == "messages left: 0"


def test_every_family_of_commands_works_and_says_no_password(remote: Remote, server: Server) -> None:
    """In one process, for all of them."""
    families = [line.partition("|") for line in FAMILIES.strip().splitlines()]
    calls = {call.strip(): int(code or 0) for call, _, code in families}
    lines = [*calls, *(f"{call} --json" for call in ("status", "doctor", "events", "backup"))]
    program = zygote.run(
        [sys.executable, "-c", PROGRAM],
        input="\n".join(lines).encode(),
        cwd=remote.directory,
        env=remote.environment,
        timeout=100,
    )
    assert program.returncode == 0, program.stderr
    answers: list[tuple[str, int, str, str]] = [json.loads(line) for line in program.stdout.splitlines()]
    wrong = [answer for answer in answers if answer[1] != calls.get(answer[0], answer[1])]
    assert wrong == [], wrong
    said = {call: (out, err) for call, _, out, err in answers}
    assert said["receive --agent a"][0].startswith("m-1#1")
    assert said["state get k --agent a"][0] == '{"x":1}\n'
    assert said["checkpoint restore x --agent a"][0] == '{"at":1}\n'
    assert "pg_dump --format=custom" in said["backup"][1]
    assert "pg_restore" in said["backup restore x.dump"][1]
    assert json.loads(said["status --json"][0])["data"]["settings"]["url"]["value"].startswith("postgresql://guest@127")
    assert SECRET.encode() not in program.stdout + program.stderr
    schema = remote.url.partition("schema=")[2]
    assert SECRET not in stored(server, schema)
    assert "agent_registered" in stored(server, schema)


def test_one_that_waits_is_woken_by_another(remote: Remote) -> None:
    with remote.open() as bus:
        a, b = (bus.register(name, type="worker") for name in ("a", "b"))
        waiting = remote.start("receive", "--wait", "20", "--ack", "--json", agent=a.identity)
        asking = remote.start("request", "b", "note", '"ready?"', "--timeout", "20", "--json", agent=a.identity)
        try:
            (question,) = b.receive_many(1, timeout=20)
            b.reply(question.message_id, "note", "yes")
            answer, _ = asking.communicate(timeout=TIMEOUT)
            assert json.loads(answer)["data"]["payload"] == "yes"
            b.send("a", "note", "work")
            got, _ = waiting.communicate(timeout=TIMEOUT)
            assert [one["payload"] for one in json.loads(got)["data"]] == ["work"]
        finally:
            for process in (waiting, asking):
                process.kill()
                process.communicate()
        assert bus.read(live_processes, None) == [], "the waiting processes have left"


@each(
    ("words", "number", "code"),
    [
        (words, number, code)
        for words in (("receive", "--wait", "60"), ("events", "--follow"), ("monitor", "--interval", "1"))
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143))
    ],
)
def test_one_that_waits_can_be_ended(remote: Remote, words: tuple[str, ...], number: int, code: int) -> None:
    with remote.open() as bus:
        me = bus.register("a", type="worker", takeover=True).identity
        process = remote.start(*words, agent=me)
        try:
            until(lambda: len(bus.read(live_processes, None)) == 1)
            process.send_signal(number)
            _, told = process.communicate(timeout=TIMEOUT)
        finally:
            process.kill()
            process.communicate()
        assert process.returncode == code
        assert b"Traceback" not in told
        assert b"Task was destroyed" not in told
        until(lambda: bus.read(live_processes, None) == [])


def test_a_command_is_run_as_an_agent(remote: Remote, server: Server) -> None:
    remote.say("init")
    script = "agentbus progress 40 half && agentbus agents show a | grep -c resident; exit 3"
    outcome = remote.run("run", "--agent", "a", "--", "sh", "-c", script)
    assert (outcome.code, outcome.out) == (3, "1\n")
    assert SECRET not in outcome.out + outcome.err
    assert SECRET not in stored(server, remote.url.partition("schema=")[2])
    with remote.open() as bus:
        found = bus.do(bus.agents.get("a"))
        assert found is not None
        assert (found.status, found.progress, found.error) == ("failed", 40, "exit code 3: 1")


def test_a_worker_runs_tasks_that_people_wait_for(remote: Remote) -> None:
    add_module(remote)
    remote.open().close()
    waiting = None
    try:
        remote.say("task", "start", "docs", "--id", "d-1", "--quiet")
        waiting = remote.start("task", "wait", "d-1")
        with remote.open() as bus:
            until(lambda: len(bus.read(live_processes, None)) == 1)
        done = remote.run("worker", "flows:docs", "--until-idle")
        assert done.code == 0
        assert SECRET not in done.out + done.err
        assert waiting.communicate(timeout=TIMEOUT) == (b"written: None\n", b"")
    finally:
        if waiting is not None:
            waiting.kill()
            waiting.communicate()


def test_a_task_that_kills_its_workers_fails(remote: Remote) -> None:
    add_module(remote)
    remote.open().close()
    remote.say("task", "start", "poison", "--id", "p-1", "--max-losses", "2", "--quiet")
    for death in (-9, 7):
        assert remote.run("worker", "flows:poison", "--until-idle").code == death
    shown = json.loads(remote.say("task", "show", "p-1", "--json"))["data"]["task"]
    assert (shown["status"], shown["losses"], shown["error"]["type"]) == ("failed", 2, "WorkersLost")


def test_one_sweep_finds_who_died(remote: Remote) -> None:
    living = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    with remote.open() as bus:
        bus.register("a", type="worker", pid=living.pid)
    living.kill()
    living.communicate()
    found = remote.json("monitor", "--once")
    assert found["counts"]["agents_failed"] == 1
    assert "a failed: its process died" in [finding["text"] for finding in found["findings"]]


def test_a_bus_goes_from_a_directory_to_a_server_as_a_file(remote: Remote) -> None:
    with open_bus(remote.directory / "here", create=True) as bus:
        a = bus.register("a", type="worker")
        a.send("a", "note", {"n": 1})
        a.checkpoint("x", {"at": 1})
    remote.say("export", "all.jsonl.gz", "--url", "here")
    remote.say("init")
    imported = remote.json("import", "all.jsonl.gz")
    assert (imported["refused"], imported["imported"]["message"]) == (0, 1)
    assert remote.say("checkpoint", "restore", "x", "--agent", "a") == '{"at":1}'


def test_the_settings_file_may_name_a_server(remote: Remote) -> None:
    del remote.environment["AGENTBUS_URL"]
    place = remote.directory / ".agentbus"
    place.mkdir()
    (place / "agentbus.toml").write_text(f'url = "{remote.url}"\nlease = 60\n')
    shown = remote.say("init")
    assert shown.startswith("postgresql://guest@127.0.0.1")
    settings = remote.json("status")["settings"]
    assert settings["url"] == {"value": shown, "source": "agentbus.toml"}
    assert settings["lease"] == {"value": 60, "source": "agentbus.toml"}
    assert sorted(path.name for path in place.iterdir()) == ["agentbus.toml"]


def test_what_is_wrong_with_a_server_is_told(remote: Remote, server: Server) -> None:
    schema = remote.url.partition("schema=")[2]
    wrong: list[tuple[str, tuple[str, ...], int, str]] = [
        (remote.url, ("status",), 1, "no_bus"),
        (remote.url, ("cleanup",), 1, "no_bus"),
        (remote.url, ("run", "--", "true"), 1, "no_bus"),
        (guest(server, password=f"wrong-{SECRET}"), ("status",), 1, "access_denied"),
        (guest(server, database="nowhere"), ("send", "a", "note", "--agent", "b"), 1, "unknown_database"),
        (guest(server), ("init",), 1, "access_denied"),
        (f"postgresql://guest:{SECRET}@127.0.0.1:{free_port()}/x", ("status",), 3, "server_unreachable"),
        (f"postgresql://guest:{SECRET}#@127.0.0.1/x", ("status",), 2, "invalid_url"),
        (f"postgresql://guest:{SECRET}@127.0.0.1/x?schema=1", ("monitor",), 2, "invalid_url"),
    ]
    for url, words, code, error in wrong:
        for option in ("--json", "--debug"):
            # By the option and by the environment: either may end in what is said.
            remote.environment["AGENTBUS_URL"] = "postgresql://nobody@nowhere.invalid/x" if option == "--json" else url
            place = ("--url", url) if option == "--json" else ()
            done = raw(remote, *words[:1], option, *place, *words[1:])
            assert SECRET not in (done.stdout + done.stderr).decode(), (url, words)
            if option == "--json":
                assert done.returncode == code, (words, done)
                assert json.loads(done.stdout)["error"]["code"] == error, (words, done)
    assert run(server.url, f"SELECT count(*) FROM pg_class WHERE relnamespace = '{schema}'::regnamespace")[0][0][0] == 0


def test_the_doctor_looks_at_a_server_that_cannot_be_opened(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_CONNECT_TIMEOUT", 0.1)
    missing = remote.json("doctor", code=1)
    assert [(check["name"], check["status"]) for check in missing[:2]] == [("server", "ok"), ("schema", "error")]
    assert "agentbus init" in missing[1]["fix"]
    remote.environment["AGENTBUS_URL"] = f"postgresql://guest:{SECRET}@127.0.0.1:{free_port()}/x"
    (gone,) = remote.json("doctor", code=1)
    assert (gone["name"], gone["status"]) == ("server", "error")
    assert SECRET not in gone["text"]


def raw(shell: Shell, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run it, whatever comes of it: with --debug that may be a traceback."""
    return zygote.run([zygote.COMMAND, *words], cwd=shell.directory, env=shell.environment, timeout=TIMEOUT)


def until(holds: Any) -> None:
    """Wait for another process to have done something."""
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
