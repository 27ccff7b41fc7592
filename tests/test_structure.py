"""The shape of the code: imports point downwards, operations stay pure, SQL has its place, nothing sleeps."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import agentbus
from agentbus import Agent, Bus, Document, Message, Monitor, Participants, RecoveryPlan, Session, State, Unit
from agentbus.checkpoints import Checkpoints
from agentbus.mailroom import Mailroom
from agentbus.registry import Registry
from agentbus.saving import Saver
from agentbus.services.recovery import Recovery
from agentbus.services.retention import Retention
from agentbus.sessions import Sessions
from agentbus.state import UnitState
from agentbus.tasks.control import Control
from agentbus.tasks.task import Child, Task
from agentbus.tasks.tasks import Tasks
from agentbus.upkeep import Upkeep

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "agentbus"
CORE = {"aiosqlite", "anyio", "msgspec", "tenacity"}
LEAVES = {
    "aside",
    "ballast",
    "errors",
    "limits",
    "codec",
    "clock",
    "addresses",
    "records",
    "schema",
    "builtin",
    "disk",
    "settings",
    "safe_files",
    "trust",
}
MOST_LINES = 800
OPERATION = {"operation", "one_by_one"}
"""What makes an operation of a function."""
WITH_RICH = {
    *(f"agentbus.interfaces.cli.{module}" for module in ("bars", "charts", "grids", "overview", "screens", "tables")),
    "agentbus.interfaces.demo.showing",
}

# From the bottom to the top, what each layer may import besides itself.
BELOW: dict[str, set[str]] = {
    "leaves": set(),
    "operations": {"leaves"},
    "engine": {"operations", "leaves"},
    "services": {"engine", "operations", "leaves"},
    "api": {"services", "engine", "operations", "leaves"},
    "interfaces": {"api", "services", "engine", "operations", "leaves"},
}
# What a rule of the bus has no business with: it takes rows and the time, and says what to write.
IMPURE = {
    "asyncio",
    "anyio",
    "aiosqlite",
    "asyncpg",
    "sqlite3",
    "tenacity",
    "logging",
    "time",
    "random",
    "threading",
    "os",
}

MODULES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for file in sorted(PACKAGE.rglob("*.py"))
}
each_module = pytest.mark.parametrize("module", MODULES)


def layer(module: str) -> str:
    parts = module.split(".")
    if len(parts) > 1 and parts[1] in BELOW:
        return parts[1]
    return "leaves" if len(parts) > 1 and parts[1] in LEAVES else "api"


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """Everything below, without what only a type checker sees."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        yield child
        yield from at_run_time(child)


def imported(module: str, *, when_loaded: bool = False) -> set[str]:
    """The modules that ``module`` imports; ``when_loaded``: without what functions import when they are called."""
    nodes = tree(module).body if when_loaded else at_run_time(tree(module))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
    return found


def texts(module: str) -> Iterator[str]:
    """Every string of a module that is not a docstring."""
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value


@each_module
def test_imports_point_downwards(module: str) -> None:
    own = layer(module)
    for other in imported(module):
        if other.split(".")[0] == "agentbus" and layer(other) != own:
            assert layer(other) in BELOW[own], f"{module} ({own}) imports {other} ({layer(other)})"


@pytest.mark.parametrize(("own", "other"), [("sqlite", "postgres"), ("postgres", "sqlite")])
def test_the_engines_do_not_know_each_other(own: str, other: str) -> None:
    modules = [module for module in MODULES if module.startswith(f"agentbus.engine.{own}.")]
    assert modules
    for module in modules:
        assert not [name for name in imported(module) if name.startswith(f"agentbus.engine.{other}")], module


def test_every_layer_is_looked_at() -> None:
    assert {layer(module) for module in MODULES} == set(BELOW)
    assert {f"agentbus.{leaf}" for leaf in LEAVES} <= set(MODULES)


def test_no_modules_import_each_other_in_a_circle() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " imports ".join((*path, module))
        if module not in done:
            for other in sorted(imported(module, when_loaded=True) & set(MODULES)):
                visit(other, (*path, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


@each_module
def test_only_the_core_packages_are_imported(module: str) -> None:
    outside = {name.split(".")[0] for name in imported(module)} - set(sys.stdlib_module_names) - {"agentbus"}
    own = {"asyncpg"} if module.startswith("agentbus.engine.postgres") else set()
    assert outside <= CORE | own | ({"rich"} if module in WITH_RICH else set())


@pytest.mark.parametrize("module", [module for module in MODULES if layer(module) == "operations"])
def test_operations_do_nothing_but_decide(module: str) -> None:
    assert not {name.split(".")[0] for name in imported(module)} & IMPURE
    coroutines = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    assert not [node for node in ast.walk(tree(module)) if isinstance(node, coroutines)]
    names = {node.id for node in ast.walk(tree(module)) if isinstance(node, ast.Name)}
    assert not names & {"print", "open", "input"}


def test_no_two_operations_have_the_same_name() -> None:
    """What is slow or fails is logged by the names of its operations."""
    names = Counter(
        node.name
        for module in MODULES
        if layer(module) == "operations"
        for node in tree(module).body
        if isinstance(node, ast.FunctionDef)
        if any(isinstance(mark, ast.Call) and ast.unparse(mark.func) in OPERATION for mark in node.decorator_list)
    )
    assert {"send", "claim", "register"} <= set(names)
    assert [name for name, count in names.items() if count > 1] == []


@each_module
def test_files_stay_small(module: str) -> None:
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_files_of_tests_stay_small() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert files
    assert [file.name for file in files if len(file.read_text(encoding="utf-8").splitlines()) > MOST_LINES] == []


@each_module
def test_every_module_says_what_lives_there(module: str) -> None:
    assert ast.get_docstring(tree(module))


@each_module
def test_sql_is_in_the_named_queries_and_the_schemas(module: str) -> None:
    statement = re.compile(r"^\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|ALTER|REPLACE|WITH)\s", re.MULTILINE)
    control = re.compile(r"^\s*(PRAGMA|BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|ATTACH|VACUUM)\b", re.MULTILINE)
    for text in texts(module):
        # Asking SQLite about itself is no business of the tables.
        if " FROM pragma_" not in text:
            assert not statement.search(text), text
        if not module.startswith(("agentbus.engine.sqlite", "agentbus.engine.postgres", "agentbus.engine.foreign")):
            assert not control.search(text), text


# Names that one module of the package needs of another, though they are not for users.
INTERNAL = {
    "Message.actor",
    "Message.begin",
    "Message.is_lost",
    "Message.lose",
    "Message.renewing",
    "Message.reply_draft",
    "Message.title",
    "Participants.enrol",
    "Unit.close",
    "Unit.commit",
    "Unit.empty",
    "Unit.open",
    "Unit.prepare",
    "Unit.prepared",
}


WORKED_WITH = (
    Agent,
    Bus,
    Checkpoints,
    Child,
    Control,
    Document,
    Mailroom,
    Message,
    Monitor,
    Participants,
    Recovery,
    RecoveryPlan,
    Registry,
    Retention,
    Saver,
    Session,
    Sessions,
    State,
    Task,
    Tasks,
    Unit,
    UnitState,
    Upkeep,
)


def public() -> Iterator[tuple[str, object]]:
    """Everything users see, by name: the exported names, and the methods of what they work with."""
    for module in (agentbus, agentbus.records):
        for name in module.__all__:
            if name != "errors":
                yield name, getattr(module, name)
    for kind in WORKED_WITH:
        for name, value in vars(kind).items():
            full = f"{kind.__name__}.{name}"
            if not name.startswith("_") and full not in INTERNAL and _is_code(value):
                yield full, value


def _is_code(value: object) -> bool:
    return inspect.isfunction(value) or isinstance(value, property)


@pytest.mark.parametrize(("name", "value"), list(public()), ids=[name for name, _ in public()])
def test_every_public_name_is_explained_with_an_example(name: str, value: object) -> None:
    text = inspect.getdoc(value)
    assert text, f"{name} has no docstring"
    assert ">>>" in text, f"{name} has no example"


def test_whoever_says_that_a_state_is_wrong_says_what_to_do() -> None:
    for module in MODULES:
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "WrongState":
                assert "advice" in {keyword.arg for keyword in node.keywords}, f"{module}:{node.lineno}"


def sleeps(file: Path) -> Iterator[str]:
    """Calls that sleep for a fixed time long enough to be a wait for something."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for value in [*node.args, *(keyword.value for keyword in node.keywords)] if name == "sleep" else []:
            if (seconds := _number(value)) is not None and seconds >= 0.2:
                yield f"{file.relative_to(ROOT)}:{node.lineno} sleeps {seconds:g} s"


def _number(node: ast.expr) -> float | None:
    """The value of a constant, also of one that is written as a sum or product."""
    try:
        value = eval(compile(ast.Expression(node), "constant", "eval"), {"__builtins__": {}})  # noqa: S307 - our own code
    except NameError:
        return None
    return float(value) if isinstance(value, int | float) else None


def test_no_test_sleeps_to_let_time_pass() -> None:
    found = [sleep for file in sorted((ROOT / "tests").rglob("*.py")) for sleep in sleeps(file)]
    assert found == []


@pytest.mark.parametrize("call", ["time.sleep(1)", "sleep(0.2)", "await anyio.sleep(60 * 5)", "sleep(delay=1.5)"])
def test_a_sleep_would_be_found(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_structure.ROOT", tmp_path)
    file = tmp_path / "test_example.py"
    file.write_text(f"async def test_something():\n    {call}\n    time.sleep(0.01)\n    sleep(patience)\n")
    assert len(list(sleeps(file))) == 1
