"""The public attributes of the objects that users hold are these, as completion shows them, and all documented."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import get_overloads

import pytest

import agentbus
from agentbus import sync
from agentbus.api.block import is_public
from tests.support import sync_client
from tests.test_structure import WORKED_WITH

PAGE = Path(__file__).resolve().parents[1] / "docs" / "sync.md"


def documented() -> dict[str, set[str]]:
    """Return the attributes by class, as the documentation lists them. Adding one is a decision: it has to be kept."""
    rows = re.findall(r"^\| `(\w+)` \| (`.*`) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", names)) for name, names in rows}


DOCUMENTED = documented()
NAMES: dict[type[object], set[str]] = {
    **{getattr(agentbus, name): names for name, names in DOCUMENTED.items()},
    **{getattr(sync, name): names for name, names in DOCUMENTED.items() if name != "Task"},
}
NAMES[sync.Bus] = NAMES[sync.Bus] | {"open", "close"}


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
    assert declared(kind) == NAMES[kind]


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
    assert len(NAMES) == 13
    assert seen.keys() == NAMES.keys()
    for kind, value in seen.items():
        assert public(dir(value)) == NAMES[kind], kind


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


@pytest.mark.parametrize(
    "kind", list(dict.fromkeys([*WORKED_WITH, *NAMES])), ids=lambda kind: f"{kind.__module__}.{kind.__name__}"
)
def test_no_method_takes_untyped_keywords(kind: type[object]) -> None:
    """``mypy`` would accept any name."""
    for name in public(dir(kind)):
        method = getattr(kind, name)
        if inspect.isfunction(method):
            for signature in map(inspect.signature, get_overloads(method) or [method]):
                for parameter in signature.parameters.values():
                    if parameter.kind is parameter.VAR_KEYWORD:
                        assert re.match(r"Unpack\[|P\.kwargs$", str(parameter.annotation)), f"{kind}.{name}"


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
