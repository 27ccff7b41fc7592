"""The structure of the code: imports point downwards, operations stay pure, SQL has its place, no test sleeps.

Each rule is one test, which lists everything that breaks it.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
import threading
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType

import pytest

import agentbus
from agentbus import Agent, Bus, Document, Message, Monitor, Participants, RecoveryPlan, Session, State, Unit
from agentbus.api.agents import Agents
from agentbus.api.checkpoints import Checkpoints
from agentbus.api.maintenance.retention import Retention
from agentbus.api.messages import Messages
from agentbus.api.recovery import Recovery
from agentbus.api.sessions import Sessions
from agentbus.api.state import UnitState
from agentbus.api.tasks.client import Control, Tasks
from agentbus.api.tasks.task import Child, ConfiguredTask, Task
from agentbus.operations.copy import TABLES
from agentbus.operations.rows import COLUMNS
from tests.support.source import package_nodes, package_tree, syntax_tree

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "agentbus"
MAX_LINES = 800
MAX_FILES_OF_A_SEND = 18
OPERATION_DECORATORS = {"operation", "single_operation"}
# These draw on a terminal: rich is optional, and imported when something is drawn.
MAY_USE_RICH = {
    "agentbus.cli.commands.demo",
    "agentbus.cli.commands.status",
    "agentbus.cli.output",
    "agentbus.cli.rich_output",
    "agentbus.cli.task_chart",
    "agentbus.cli.task_tree",
    "agentbus.cli.views",
}

# From the bottom to the top. A package imports from its own floor only itself, except on the ground floor.
FLOORS = (
    {"core", "errors", "records", "telemetry"},
    {"operations"},
    {"engine"},
    {"api"},
    {"sync"},
    {"mcp"},
    {"web", "integrations"},
    {"cli"},
)
FLOOR = {package: height for height, packages in enumerate(FLOORS) for package in packages}
# An operation takes rows and the time, and returns what to write: it does nothing itself.
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
OPERATIONS = [module for module in MODULES if module.startswith("agentbus.operations")]


def package(module: str) -> str:
    """Return the package of the floor that a module belongs to; ``agentbus`` itself holds the names of the API."""
    parts = module.split(".")
    if parts[-1] == "__main__":
        return "cli"
    return parts[1] if len(parts) > 1 else "api"


def may_import(module: str, other: str) -> bool:
    own, its = FLOOR[package(module)], FLOOR[package(other)]
    return its < own or package(module) == package(other) or own == its == 0


def tree(module: str) -> ast.Module:
    return package_tree(MODULES[module])


def nodes(module: str) -> tuple[ast.AST, ...]:
    return package_nodes(MODULES[module])


def at_run_time(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield every statement below a node, without those that only a type checker sees."""
    rest = [node]
    while rest:
        for child in ast.iter_child_nodes(rest.pop()):
            # Expressions contain no statements.
            if isinstance(child, ast.expr):
                continue
            if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.stmt):
                yield child
            rest.append(child)


@cache
def imported(module: str, *, when_loaded: bool = False) -> frozenset[str]:
    """Return the modules that ``module`` imports; ``when_loaded``: without those that its functions import."""
    found: set[str] = set()
    for node in tree(module).body if when_loaded else at_run_time(tree(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
    return frozenset(found)


def outside(module: str) -> set[str]:
    """Return the packages that a module imports, by the first part of their name."""
    return {name.split(".")[0] for name in imported(module)}


def texts(module: str) -> Iterator[str]:
    """Yield every string of a module that is not a docstring."""
    documentation = {
        id(node.body[0].value)
        for node in nodes(module)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in nodes(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value


def test_every_module_is_on_a_floor() -> None:
    assert [module for module in MODULES if package(module) not in FLOOR] == []
    assert set(FLOOR) <= {package(module) for module in MODULES}


def test_imports_point_downwards() -> None:
    upwards = [
        f"{module} imports {other}"
        for module in MODULES
        for other in sorted(imported(module))
        if other.split(".")[0] == "agentbus" and not may_import(module, other)
    ]
    assert upwards == []


def test_no_module_imports_the_adapters() -> None:
    found = [
        f"{module} imports {other}"
        for module in MODULES
        if package(module) != "integrations"
        for other in sorted(imported(module))
        if other.split(".")[:2] == ["agentbus", "integrations"]
    ]
    assert found == []


def test_an_upward_import_would_be_found() -> None:
    assert may_import("agentbus.cli.main", "agentbus.sync.bus")
    assert may_import("agentbus.core.codec", "agentbus.errors.calls")
    assert not may_import("agentbus.operations.send", "agentbus.engine.queries")
    assert not may_import("agentbus.mcp.server", "agentbus.cli.main")
    assert not may_import("agentbus.api.bus", "agentbus.integrations.langgraph")


def test_the_engines_do_not_know_each_other() -> None:
    pairs = [("sqlite", "postgres"), ("postgres", "sqlite")]
    found = [
        f"{module} imports {name}"
        for own, other in pairs
        for module in MODULES
        if module.startswith(f"agentbus.engine.{own}.")
        for name in imported(module)
        if name.startswith(f"agentbus.engine.{other}")
    ]
    assert found == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    done: set[str] = set()
    circles: list[str] = []

    def visit(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            circles.append(" imports ".join((*path[path.index(module) :], module)))
        elif module not in done:
            for other in sorted(imported(module, when_loaded=True) & set(MODULES)):
                visit(other, (*path, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())
    assert circles == []


def test_only_the_dependencies_are_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {re.split(r"[^\w-]", text)[0].replace("-", "_") for text in project["dependencies"]}
    allowed = required | set(sys.stdlib_module_names) | {"agentbus"}
    found = [
        f"{module} imports {name}"
        for module in MODULES
        for name in sorted(outside(module) - allowed)
        if not (name == "asyncpg" and module.startswith("agentbus.engine.postgres"))
        if not (name == "rich" and module in MAY_USE_RICH)
        if not (name == "opentelemetry" and package(module) == "telemetry")
        if package(module) not in {"web", "integrations"}
    ]
    assert found == []


def test_operations_do_nothing_but_decide() -> None:
    coroutines = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    found = [f"{module} imports {name}" for module in OPERATIONS for name in sorted(outside(module) & IMPURE)]
    for module in OPERATIONS:
        for node in nodes(module):
            if isinstance(node, coroutines):
                found.append(f"{module}:{node.lineno} awaits")
            elif isinstance(node, ast.Name) and node.id in {"print", "open", "input"}:
                found.append(f"{module}:{node.lineno} calls {node.id}")
    assert found == []


def test_no_two_operations_have_the_same_name() -> None:
    """Log lines name operations by their functions."""
    names = Counter(
        node.name
        for module in OPERATIONS
        for node in tree(module).body
        if isinstance(node, ast.FunctionDef)
        if any(
            isinstance(mark, ast.Call) and ast.unparse(mark.func) in OPERATION_DECORATORS
            for mark in node.decorator_list
        )
    )
    assert {"send", "claim", "register"} <= set(names)
    assert [name for name, count in names.items() if count > 1] == []


def test_files_stay_small() -> None:
    files = [*MODULES.values(), *sorted((ROOT / "tests").rglob("*.py"))]
    lines = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8").count("\n") for file in files}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_a_send_passes_through_few_files(tmp_path: Path) -> None:
    """On the event loop and on the thread of the writer, once everything that can be cached is."""
    files = asyncio.run(_files_of_a_send(tmp_path))
    names = {Path(file).relative_to(PACKAGE).as_posix() for file in files if Path(file).is_relative_to(PACKAGE)}
    assert {"api/agent.py", "operations/send.py", "engine/sqlite/transaction.py"} <= names
    assert len(names) <= MAX_FILES_OF_A_SEND, "\n".join(sorted(names))


async def _files_of_a_send(home: Path) -> set[str]:
    """Return the files of the shortest of several sends: a heartbeat may have come in between."""
    sends: list[set[str]] = []

    def enter(frame: FrameType, event: str, argument: object) -> None:
        if sends:
            sends[-1].add(frame.f_code.co_filename)

    before, before_of_threads = sys.gettrace(), threading.gettrace()
    threading.settrace(enter)
    sys.settrace(enter)
    try:
        async with agentbus.connect(home / "bus") as bus, bus.agent("planner-1", type="planner") as agent:
            await agent.send("planner-1", "note", 1)
            for _ in range(3):
                sends.append(set())
                await agent.send("planner-1", "note", 1)
            files = min(sends, key=len)
            sends.clear()
            return files
    finally:
        sys.settrace(before)
        threading.settrace(before_of_threads)


def test_every_module_has_a_docstring() -> None:
    assert [module for module in MODULES if not ast.get_docstring(tree(module))] == []


# A new column of a message or an agent is added to the lists in these files, and to the migrations.
LISTS_COLUMNS = {
    "stored_message": {
        "api/sending.py",
        "operations/rows.py",
        "records/entities.py",
        "records/tasks.py",  # The message that a task received.
        "api/maintenance/importer/mapping.py",  # The fields of other programs.
        "web/handlers/agents.py",  # The bodies of requests.
    },
    "stored_agent": {
        "api/agents.py",
        "operations/rows.py",
        "records/entities.py",
        "web/handlers/agents.py",  # The bodies of requests.
    },
}
COLUMNS_OF_A_LIST = 6
"""The columns that no other table has, and that make up a list of the columns of the table."""


def listed(node: ast.AST) -> set[str]:
    """Return the names that a class, a signature, a call, a collection or a text lists."""
    match node:
        case ast.ClassDef():
            return {
                part.target.id
                for part in node.body
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
            }
        case ast.arguments():
            return {part.arg for part in (*node.posonlyargs, *node.args, *node.kwonlyargs)}
        case ast.Constant(value=str() as text):
            return _words(text)
        case ast.Call():
            return {part.arg for part in node.keywords if part.arg} | _names(node.args)
        case ast.Tuple() | ast.List() | ast.Set():
            return _names(node.elts)
        case ast.Dict():
            return _names([key for key in node.keys if key is not None])
    return set()


def _names(parts: list[ast.expr]) -> set[str]:
    names = [getattr(part, "attr", None) or getattr(part, "id", None) or getattr(part, "value", None) for part in parts]
    return {name for name in names if isinstance(name, str)}


@cache
def lists(file: Path) -> list[set[str]]:
    """Return the names of each list in a module or a file of SQL, if it is long enough."""
    if file.suffix == ".py":
        module = next((module for module, home in MODULES.items() if home == file), None)
        found = [listed(node) for node in ast.walk(syntax_tree(file) if module is None else tree(module))]
    else:
        sql = re.sub(r"--.*", "", file.read_text(encoding="utf-8"))
        found = [_words(run) for run in re.findall(r"[\w.]+(?:\s*,\s*[\w.]+)+", sql)]
    return [names for names in found if len(names) >= COLUMNS_OF_A_LIST]


def columns_listed(row: str, files: Iterable[Path]) -> set[Path]:
    """Return the files that list the columns of a row of ``operations.rows``."""
    others = {column for table in TABLES.keys() & COLUMNS.keys() for column in COLUMNS[table]}
    others |= set(COLUMNS[next(other for other in LISTS_COLUMNS if other != row)])
    # Work items have a priority as well; a list with it is still a list of the columns of messages.
    own = set(COLUMNS[row]) - (others - {"priority"})
    # Only a file that has the words at all is parsed.
    named = [file for file in files if len(own & _words(file.read_text(encoding="utf-8"))) >= COLUMNS_OF_A_LIST]
    return {file for file in named if any(len(own & names) >= COLUMNS_OF_A_LIST for names in lists(file))}


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


@pytest.mark.parametrize("row", LISTS_COLUMNS)
def test_the_columns_of_messages_and_agents_are_listed_in_few_files(row: str) -> None:
    files = columns_listed(row, (file for kind in ("*.py", "*.sql") for file in PACKAGE.rglob(kind)))
    assert {file.relative_to(PACKAGE).as_posix() for file in files} == LISTS_COLUMNS[row]


@pytest.mark.parametrize("row", LISTS_COLUMNS)
def test_a_further_list_of_columns_would_be_found(row: str, tmp_path: Path) -> None:
    columns = COLUMNS[row]
    texts = {
        "struct.py": "class Line:\n" + "".join(f"    {column}: int\n" for column in columns),
        "call.py": f"Line({', '.join(f'row.{column}' for column in columns)})",
        "words.py": f"COLUMNS = '{' '.join(columns)}'",
        "query.sql": f"SELECT {', '.join(f't.{column}' for column in columns)} FROM t;",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert columns_listed(row, tmp_path.iterdir()) == {tmp_path / name for name in texts}


def test_sql_is_in_the_named_queries_and_the_schemas() -> None:
    statement = re.compile(r"^\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|ALTER|REPLACE|WITH)\s", re.MULTILINE)
    control = re.compile(r"^\s*(PRAGMA|BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|ATTACH|VACUUM)\b", re.MULTILINE)
    engines = ("agentbus.engine.sqlite", "agentbus.engine.postgres")
    found = [
        f"{module}: {text}"
        for module in MODULES
        for text in texts(module)
        # SQLite is asked about itself wherever that is needed.
        if (statement.search(text) and " FROM pragma_" not in text)
        or (control.search(text) and not module.startswith(engines))
    ]
    assert found == []


WORKED_WITH = (
    Agent,
    Bus,
    Checkpoints,
    Child,
    ConfiguredTask,
    Control,
    Document,
    Messages,
    Message,
    Monitor,
    Participants,
    Recovery,
    RecoveryPlan,
    Agents,
    Retention,
    Session,
    Sessions,
    State,
    Task,
    Tasks,
    Unit,
    UnitState,
)


def public() -> Iterator[tuple[str, object]]:
    """Yield everything users see, by name: the exported names, and the methods of what they work with."""
    for module in (agentbus, agentbus.records):
        for name in module.__all__:
            if name != "errors":
                yield name, getattr(module, name)
    for kind in WORKED_WITH:
        for base in kind.__mro__:
            for name, value in vars(base).items():
                full = f"{kind.__name__}.{name}"
                is_code = inspect.isfunction(value) or isinstance(value, property)
                if base.__module__.startswith("agentbus.") and is_code and not name.startswith("_"):
                    yield full, value


def test_every_public_name_has_an_example() -> None:
    names = dict(public())
    missing = [name for name, value in names.items() if ">>>" not in (inspect.getdoc(value) or "")]
    assert sorted(set(missing)) == []


def test_an_error_about_a_wrong_state_has_its_fix() -> None:
    found = [
        f"{module}:{node.lineno}"
        for module in MODULES
        for node in nodes(module)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "WrongState"
        if "advice" not in {keyword.arg for keyword in node.keywords}
    ]
    assert found == []


MAY_SLEEP = re.compile(r"\bsleep\s*\((?!0(\.[01]\d*)?\))")
"""Only files with a match are parsed."""


def sleeps(file: Path) -> Iterator[str]:
    """Yield the calls that sleep for a fixed time long enough to be a wait for something."""
    if not MAY_SLEEP.search(file.read_text(encoding="utf-8")):
        return
    for node in ast.walk(syntax_tree(file)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "sleep" and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "task":
            continue  # A durable task sleeps by the injected clock.
        for value in [*node.args, *(keyword.value for keyword in node.keywords)] if name == "sleep" else []:
            if (seconds := _number(value)) is not None and seconds >= 0.2:
                yield f"{file.relative_to(ROOT)}:{node.lineno} sleeps {seconds:g} s"


def _number(node: ast.expr) -> float | None:
    """Return the value of a constant, also of one that is written as a sum or product."""
    try:
        value = eval(compile(ast.Expression(node), "constant", "eval"), {"__builtins__": {}})  # noqa: S307 - our own code
    except NameError:
        return None
    return float(value) if isinstance(value, int | float) else None


def test_no_test_sleeps_to_let_time_pass() -> None:
    found = [sleep for file in sorted((ROOT / "tests").rglob("*.py")) for sleep in sleeps(file)]
    assert found == []


def test_a_sleep_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_structure.ROOT", tmp_path)
    file = tmp_path / "test_example.py"
    for call in ("time.sleep(1)", "sleep(0.2)", "await anyio.sleep(60 * 5)", "sleep(delay=1.5)"):
        file.write_text(f"async def test_something():\n    {call}\n    time.sleep(0.01)\n    sleep(timeout)\n")
        assert len(list(sleeps(file))) == 1, call
