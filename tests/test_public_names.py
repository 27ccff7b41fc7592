"""The public names: exactly these, imported lazily."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import agentbus
from agentbus import errors
from agentbus.operations import health

# Adding a name is a decision: it has to be kept.
PUBLIC = [
    "Address",
    "Agent",
    "Bus",
    "Clock",
    "Document",
    "History",
    "HistoryItem",
    "HistoryPut",
    "HistoryWrite",
    "Message",
    "Monitor",
    "Now",
    "OutgoingMessage",
    "Participants",
    "Priority",
    "Reach",
    "Receipt",
    "RecoveryPlan",
    "RetentionPolicy",
    "Session",
    "State",
    "Steered",
    "SystemClock",
    "Task",
    "Unit",
    "WorkItem",
    "connect",
    "doctor",
    "errors",
    "pool",
    "records",
    "restore_backup",
    "sync",
    "telemetry",
    "topic",
    "workflow",
]
HEAVY = {"asyncio", "anyio", "aiosqlite", "tenacity", "sqlite3", "logging"}


def modules_after(code: str) -> set[str]:
    """Return the modules of a fresh interpreter after running ``code``."""
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
        "import agentbus.engine.sqlite.blocking, agentbus.operations.agents, agentbus.operations.receive"
    )
    assert not found & {"asyncio", "anyio", "aiosqlite", "tenacity", "agentbus.core.jsonschema"}


def test_the_examples_in_the_documentation_are_true() -> None:
    names = [info.name for info in pkgutil.walk_packages(agentbus.__path__, "agentbus.") if "__main__" not in info.name]
    known = {**vars(errors), **vars(health)}
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    failed: list[str] = []
    with_examples: set[str] = set()
    for name in names:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            # The framework of an adapter is not installed.
            assert name.startswith("agentbus.integrations."), name
            continue
        for found in finder.find(module, name, extraglobs=known):
            # The runner resets a debugger for each docstring, with examples or without.
            if found.examples:
                with_examples.add(name)
                failed += [found.name] if runner.run(found).failed else []
    assert failed == []
    assert {
        "agentbus.core.validation",
        "agentbus.core.addresses",
        "agentbus.core.clock",
        "agentbus.api.types",
    } <= with_examples
