"""The public surface: these names and no others, imported only when they are used."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from types import ModuleType

import pytest

import agentbus

# Adding a name is a decision: whoever adds one here has thought about keeping it for ever.
PUBLIC = [
    "Address",
    "Agent",
    "Bus",
    "Clock",
    "Document",
    "Message",
    "Monitor",
    "Now",
    "Participants",
    "Priority",
    "Receipt",
    "RecoveryPlan",
    "RetentionPolicy",
    "Session",
    "State",
    "SystemClock",
    "Task",
    "Unit",
    "connect",
    "doctor",
    "errors",
    "pool",
    "records",
    "restore_backup",
    "topic",
    "workflow",
]
HEAVY = {"asyncio", "anyio", "aiosqlite", "tenacity", "sqlite3", "logging"}


def modules_after(code: str) -> set[str]:
    """What a fresh interpreter has imported after running ``code``."""
    command = [sys.executable, "-I", "-c", f"{code}\nimport sys\nprint(*sys.modules)"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split())


def test_the_public_names_are_these() -> None:
    assert sorted(agentbus.__all__) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_resolves(name: str) -> None:
    value = getattr(agentbus, name)
    if isinstance(value, ModuleType):
        assert value.__name__ == f"agentbus.{name}"
    else:
        assert value.__name__ == name


def test_dir_lists_the_public_names_and_the_version() -> None:
    assert set(PUBLIC) | {"__version__"} <= set(dir(agentbus))
    assert all(hasattr(agentbus, name) for name in dir(agentbus))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'nothing'"):
        _ = agentbus.nothing


def test_a_star_import_gives_all_of_them() -> None:
    names: dict[str, object] = {}
    exec("from agentbus import *", names)  # noqa: S102
    assert set(PUBLIC) <= set(names)


def test_importing_agentbus_imports_nothing_heavy() -> None:
    found = modules_after("import agentbus")
    assert not found & HEAVY
    assert not {name for name in found if name.startswith("agentbus.")}


def test_names_without_an_event_loop_need_no_event_loop() -> None:
    found = modules_after("from agentbus import Address, Priority, Receipt, errors, pool, records, topic, Now")
    assert not found & HEAVY


def test_the_blocking_driver_starts_without_an_event_loop() -> None:
    found = modules_after(
        "import agentbus.engine.sqlite.blocking, agentbus.operations.agents, agentbus.operations.leases"
    )
    assert not found & {"asyncio", "anyio", "aiosqlite", "tenacity", "agentbus.schema"}


@pytest.mark.parametrize(
    "name",
    ["errors", "limits", "addresses", "clock", "codec", "records.bus", "records.recovery", "records.upkeep", "disk",
     "settings", "message", "schema", "schema.work", "schema.patterns", "vocabulary"],
)  # fmt: skip
def test_the_examples_in_the_documentation_are_true(name: str) -> None:
    module = importlib.import_module(f"agentbus.{name}")
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


@pytest.mark.parametrize("name", ["errors", "limits", "addresses", "clock", "schema", "vocabulary"])
def test_there_are_examples_to_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"agentbus.{name}")).attempted > 0
