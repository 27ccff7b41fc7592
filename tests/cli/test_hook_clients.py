"""Messages that enter the context of coding agents, through the configuration that ``agentbus setup`` writes."""

from __future__ import annotations

import os
from typing import Any

import pytest

from agentbus.cli.clients import CLIENTS
from agentbus.sync.bus import open_bus
from tests.cli.conftest import COMMAND, TIMEOUT, Shell
from tests.support.coding_agents import NODE, CodingAgent, messages

MID_TURN = ("claude", "codex", "gemini", "opencode", "cursor")
"""Clients in which a message arrives while the agent works."""


@pytest.fixture
def project(shell: Shell) -> Shell:
    """A project with a bus, a home directory of its own, and ``agentbus`` on the path: a script that runs it as a
    child, and is not the client."""
    (shell.directory / ".git").mkdir()
    home = shell.directory / "home"
    home.mkdir()
    wrapper = home / "agentbus"
    wrapper.write_text(f'#!/bin/sh\n"{COMMAND}" "$@"\nexit $?\n')
    wrapper.chmod(0o755)
    shell.environment |= {
        "HOME": str(home),
        "PATH": f"{home}{os.pathsep}{os.environ['PATH']}",
    }
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME", "KIMI_CODE_HOME", "GEMINI_CLI_HOME"):
        shell.environment.pop(name, None)
    shell.register("sender")
    return shell


def install(project: Shell, client: str, *words: str) -> None:
    if client == "opencode" and NODE is None:
        pytest.skip("needs node")
    scope = "--user" if client == "kimi" else "--project"
    project.say("setup", client, scope, *words)


def send(project: Shell, to: str, text: str, **options: Any) -> str:
    with open_bus(project.directory / ".agentbus") as bus:
        found = bus.agent("sender").send(to, "note", {"text": text}, **options).message_id
    assert found is not None
    return found


def agents(project: Shell) -> list[str]:
    with open_bus(project.directory / ".agentbus") as bus:
        return sorted(one.id for one in bus.do(bus.agents.list()).items if one.id != "sender")


def texts(context: str) -> list[str]:
    return [one["payload"]["text"] for one in messages(context)]


@pytest.mark.one_engine
@pytest.mark.parametrize("client", CLIENTS)
def test_messages_reach_an_agent_through_the_hooks_that_setup_writes(project: Shell, client: str) -> None:
    """From the start of a session to its end: shown while a tool runs, with a prompt, and instead of a stop."""
    install(project, client)
    with CodingAgent(client, project.directory, project.environment) as agent:
        begun = agent.start() + agent.prompt()
        (name,) = agents(project)
        assert name.startswith(f"{client}-agentbus-cli-")
        if client != "kimi":
            assert f"You are the agent {name} " in begun
        # While a tool runs: an urgent message is in the context after it, another waits.
        during = agent.tool(
            during=lambda: (send(project, name, "low"), send(project, name, "urgent", priority=9)), size=100_000
        )
        assert texts(during) == (["urgent"] if client in MID_TURN else [])
        # Once: not with the next tool, though it is not settled.
        assert texts(agent.tool()) == []
        # The agent stops: what waits keeps it from that, and what it has not settled is repeated.
        reason = agent.stop()
        assert reason is not None
        assert sorted(texts(reason)) == ["low", "urgent"]
        for one in messages("\n".join(agent.context)):
            project.run("ack", one["lease"], "--agent", name)
        assert agent.stop(continued=True) is None
        # The next prompt, in clients that add to it, and in others the start of a session or a tool.
        send(project, name, "later")
        later = agent.prompt() if client != "cursor" else agent.start("resume")
        assert texts(later) == ["later"]
        agent.end()
    with open_bus(project.directory / ".agentbus") as bus:
        record = bus.do(bus.agents.get(name))
        assert record is not None
        assert (record.status, record.error) == ("failed", "its client session ended")
        # Its mailbox accepts messages for the next start.
        bus.agent("sender").send(name, "note", {"text": "for the next session"})
    install(project, client, "--remove")
    with CodingAgent(client, project.directory, project.environment) as agent:
        assert agent.fire("session-start", source="startup")["hooks"] == 0
        assert agent.context == []


@pytest.mark.one_engine
def test_two_coding_agents_talk_without_joining_by_themselves(project: Shell) -> None:
    """They are two agents, though both work in one directory; an idle one is woken through ``agentbus watch``."""
    for client in ("claude", "codex"):
        install(project, client)
    with (
        CodingAgent("claude", project.directory, project.environment) as first,
        CodingAgent("codex", project.directory, project.environment) as second,
    ):
        first.start()
        second.start()
        claude, codex = agents(project)
        assert (claude[:7], codex[:6]) == ("claude-", "codex-")
        # By the command that each was told.
        said = [text for text in first.context if "Send a message" in text]
        assert f"--agent {claude}" in said[0]
        project.say("send", codex, "note", '{"text": "which port?"}', "--priority", "7", "--agent", claude)
        (question,) = messages(second.tool())
        assert (question["from"], question["payload"]) == (claude, {"text": "which port?"})
        assert first.stop() is None
        # The client of the first turns each line of a process in the background into an event.
        watch = project.start("watch", "--agent", claude, "--max", "1")
        try:
            project.say("reply", question["lease"], "note", '{"text": "8080"}', "--agent", codex)
            line, _ = watch.communicate(timeout=TIMEOUT)
        finally:
            watch.kill()
        assert watch.returncode == 0
        assert codex in line.decode()
        assert texts(first.prompt("[event] " + line.decode())) == ["8080"]
        assert second.stop() is None
