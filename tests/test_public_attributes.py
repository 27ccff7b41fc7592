"""What completion shows: the public attributes of the objects that users hold are these, and all of them documented."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable
from pathlib import Path

import pytest

import agentbus
from agentbus import sync
from agentbus.api.block import is_public
from tests.support import sync_client

# Adding a name is a decision: it has to be kept.
AGENT = """
    ack busy checkpoint checkpoint_every complete ended epoch fail id inbox join leave pending progress publish receive
    receive_many request restore restored send send_many serve session state stop subscribe unit unsubscribe
"""
BUS = """
    agent agents backup checkpoints declare define doctor events expect export import_archive import_path messages
    monitor quotas recovery register retention session sessions state stats sweep tasks types
"""
MESSAGE = """
    ack attempts correlation created decode extend headers id message_id nack payload priority raw recipient reject
    reply sender session type
"""
SESSION = """
    agent before checkpoint checkpoint_all checkpoint_every complete composites continue_ continued counts document
    documents ended expect fail finish_member id meetings milestone missing operation participants pause progress record
    restore rollback state
"""
STATE = "delete entry get increment list scope set watch"
TASK = """
    approval attempt checkpoint context id name note options phase progress restore result session settings start step
    unit
"""
UNIT = "ack checkpoint document progress publish reply send state state_of"
NAMES: dict[type[object], str] = {
    agentbus.Agent: AGENT,
    agentbus.Bus: BUS,
    agentbus.Message: MESSAGE,
    agentbus.Session: SESSION,
    agentbus.State: STATE,
    agentbus.Task: TASK,
    agentbus.Unit: UNIT,
    sync.Agent: AGENT,
    sync.Bus: f"{BUS} open close",
    sync.Message: MESSAGE,
    sync.Session: SESSION,
    sync.State: STATE,
    sync.Unit: UNIT,
}


def public(names: Iterable[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def declared(kind: type[object]) -> set[str]:
    """Return the public names of a class, also of attributes that its objects set."""
    found = public(dir(kind))
    for base in kind.__mro__:
        found |= public(vars(base).get("__annotations__", {}))
    return found


@pytest.mark.parametrize("kind", NAMES, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_the_public_attributes_are_these(kind: type[object]) -> None:
    assert declared(kind) == set(NAMES[kind].split())


async def test_objects_have_no_other_public_attributes(tmp_path: Path) -> None:
    seen: dict[type[object], object] = {}

    @agentbus.workflow("seen")
    async def workflow(task: agentbus.Task) -> None:
        seen[type(task)] = task

    async with (
        agentbus.connect(tmp_path / "bus") as bus,
        bus.session("planning") as session,
        session.agent("a", type="worker") as agent,
    ):
        await agent.send("a", "note")
        message = await agent.receive()
        assert message is not None
        async with message as unit:
            pass
        await bus.tasks.start(workflow)
        await bus.tasks.run_worker(workflow, until_idle=True)
        seen |= {type(one): one for one in (bus, session, agent, message, unit, agent.state)}
    with (
        sync.connect(tmp_path / "bus") as open_bus,
        open_bus.session("planning") as open_session,
        open_session.agent("b", type="worker") as open_agent,
    ):
        open_agent.send("b", "note")
        received = open_agent.receive()
        assert received is not None
        with received as open_unit:
            pass
        seen |= {type(one): one for one in (open_bus, open_session, open_agent, received, open_unit, open_agent.state)}
    assert seen.keys() == NAMES.keys()
    for kind, value in seen.items():
        assert public(dir(value)) == set(NAMES[kind].split()), kind


def test_a_block_knows_the_attributes_of_what_it_yields() -> None:
    assert is_public(agentbus.Agent, "send")
    assert is_public(agentbus.Agent, "epoch")
    assert not is_public(agentbus.Agent, "_engine")
    assert not is_public(agentbus.Agent, "nothing")


def test_the_synchronous_classes_are_those_that_the_asynchronous_ones_make() -> None:
    """``make sync`` writes them."""
    for name, text in sync_client.modules().items():
        expected, found = ast.parse(text), ast.parse((sync_client.TARGET / name).read_text(encoding="utf-8"))
        assert imports(found) == imports(expected), name
        assert content(found) == content(expected), name


def test_the_synchronous_methods_have_the_same_parameters() -> None:
    for kind in (sync.Agent, sync.Bus, sync.Message, sync.Session, sync.State, sync.Unit):
        original = getattr(agentbus, kind.__name__)
        for name in public(dir(kind)) - {"open", "close"}:
            method = getattr(kind, name)
            if inspect.isfunction(method):
                there = inspect.signature(getattr(original, name)).parameters
                here = inspect.signature(method).parameters
                assert list(here) == list(there), f"{kind.__name__}.{name}"


def imports(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {f"from {node.module} import {alias.name} as {alias.asname}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {f"import {alias.name}" for alias in node.names}
    return found


def content(tree: ast.Module) -> list[str]:
    kept = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    documentation = ast.get_docstring(tree)
    return [str(documentation), *(ast.dump(node) for node in kept)]
