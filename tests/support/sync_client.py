"""Write agentbus/sync/client from the asynchronous API: ``make sync``.

Each public class becomes a wrapper with the same methods, arguments and documentation. Only what differs without an
event loop is translated: coroutines, asynchronous iterators and blocks.
"""

from __future__ import annotations

import ast
import builtins
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "agentbus" / "sync" / "client"

# The module written, the module read, and its classes.
SOURCES: dict[str, tuple[str, tuple[str, ...]]] = {
    "agent": ("api.agent", ("Agent",)),
    "agents": ("api.agents", ("Agents",)),
    "bus": ("api.bus", ("Bus",)),
    "checkpoints": ("api.checkpoints", ("Checkpoints",)),
    "documents": ("api.documents", ("Document",)),
    "histories": ("api.histories", ("Histories",)),
    "holds": ("api.holds", ("Holds",)),
    "items": ("api.tasks.items", ("Items", "WorkItem")),
    "message": ("api.message", ("Message",)),
    "messages": ("api.messages", ("Messages", "Quotas")),
    "monitor": ("api.monitor", ("Monitor",)),
    "notifications": ("api.notifications", ("Notifications",)),
    "recovery": ("api.recovery", ("Recovery", "RecoveryPlan")),
    "retention": ("api.maintenance.retention", ("Retention",)),
    "session": ("api.session", ("Participants", "Session")),
    "sessions": ("api.sessions", ("Sessions",)),
    "state": ("api.state", ("State",)),
    "tasks": ("api.tasks.client", ("Control", "Tasks")),
    "tokens": ("api.tokens", ("Tokens",)),
    "unit": ("api.unit", ("Unit",)),
    "visitor": ("api.visitor", ("Visitor",)),
}
ON_LOOP = {("Visitor", "abandon")}
"""Methods that are no coroutines, but start a task of the loop."""
FUNCTIONS = {"bus": ("connect", "doctor")}
HOMES = {kind: module for module, (_, kinds) in SOURCES.items() for kind in kinds}
NAMES = re.compile(rf"\b({'|'.join(sorted(HOMES))})\b")
_INDENT = "    "


class Module:
    """One module of the asynchronous API, and what is written from it."""

    def __init__(self, name: str) -> None:
        source, self.classes = SOURCES[name]
        self.name = name
        self.source = f"agentbus.{source}"
        self.tree = ast.parse((ROOT / "agentbus" / f"{source.replace('.', '/')}.py").read_text(encoding="utf-8"))
        self._homes = dict(_imports(self.tree, self.source))
        self._typing: set[str] = set()
        """Imports for annotations only."""
        self._running: set[str] = {"from __future__ import annotations"}

    def written(self) -> str:
        """Return the module of the synchronous API."""
        parts = [self._class(node) for node in self.tree.body if isinstance(node, ast.ClassDef) if node.name in HOMES]
        parts += [
            self._function(node)
            for node in self.tree.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if node.name in FUNCTIONS.get(self.name, ())
        ]
        body = "\n\n\n".join(parts)
        package, _, module = self.source.rpartition(".")
        self._running.add(f"from {package} import {module} as api")
        for name in ("Wrapper", "BlockWrapper", "BusBase", "run_alone", "unwrap", "unwrap_all"):
            if re.search(rf"(?<![\w.]){name}\b", body):
                self._running.add(f"from agentbus.sync.client.base import {name}")
        if re.search(r"\bcast\(", body):
            self._running.add("from typing import cast")
        if "cast(Any, " in body:
            self._running.add("from typing import Any")
        if "@overload" in body:
            self._running.add("from typing import overload")
        self._typing -= self._running
        if self._typing:
            self._running.add("from typing import TYPE_CHECKING")
        documentation = ast.get_docstring(self.tree) or ""
        origin = f"Written by ``make sync`` from ``{self.source}``: change that."
        lines = [f'"""{translated(documentation)}\n\n{origin}\n"""']
        lines += sorted(self._running, key=lambda line: "__future__" not in line)
        if self._typing:
            lines += ["if TYPE_CHECKING:", *(_INDENT + line for line in sorted(self._typing))]
        return "\n".join([*lines, "\n", body, ""])

    def _class(self, node: ast.ClassDef) -> str:
        methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
        entering = next((part for part in node.body if getattr(part, "name", "") == "__aenter__"), None)
        base = f"Wrapper[api.{node.name}]"
        if node.name == "Bus":
            base = "BusBase"
        elif isinstance(entering, ast.AsyncFunctionDef):
            assert entering.returns is not None
            value = ast.unparse(entering.returns)
            if value == node.name:
                value = f'"{value}"'
            else:
                self._need(entering.returns, self._running)
            base = f"BlockWrapper[api.{node.name}, {value}]"
        elif node.bases and ast.unparse(node.bases[0]) in HOMES:
            base = ast.unparse(node.bases[0])
        lines = [f"class {node.name}({base}, wraps=api.{node.name}):"]
        if base == "Control":
            # The wrapper of the base class calls methods of this one.
            lines.append(f"{_INDENT}_inner: api.{node.name}")
        lines = [lines[0], *self._documentation(node), "", f"{_INDENT}__slots__ = ()", *lines[1:]]
        overloaded: set[str] = set()
        for number, part in enumerate(node.body):
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                if not part.target.id.startswith("_"):
                    following = node.body[number + 1]
                    lines += ["", *self._attribute(part.target.id, part.annotation, following)]
            elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and not part.name.startswith("_"):
                marks = {ast.unparse(mark) for mark in part.decorator_list}
                if "overload" in marks:
                    overloaded.add(part.name)
                    lines += ["", f"{_INDENT}@overload", f"{_INDENT}def {self._signature(part)}: ..."]
                elif marks & {"property", "cached_property"}:
                    assert part.returns is not None
                    lines += ["", *self._attribute(part.name, part.returns, part)]
                else:
                    lines += ["", *self._method(part, node.name, overloaded=part.name in overloaded)]
        assert methods
        return "\n".join(lines)

    def _attribute(self, name: str, annotation: ast.expr, documented: ast.AST) -> list[str]:
        kind = self._annotation(annotation)
        value = f"self._inner.{name}"
        if NAMES.search(kind):
            value = f'cast("{kind}", self._wrap({value}))'
        lines = [f"{_INDENT}@property", f"{_INDENT}def {name}(self) -> {kind}:"]
        return [*lines, *self._documentation(documented, 2), f"{_INDENT * 2}return {value}"]

    def _method(self, node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str, *, overloaded: bool) -> list[str]:
        returns = self._annotation(node.returns)
        given = self._arguments(node.args, skip=1)
        # A ParamSpec takes the first of several signatures.
        method = f"cast(Any, self._inner).{node.name}" if overloaded else f"self._inner.{node.name}"
        call = ", ".join([method, *given])
        if re.match(r"Iterator\b", returns):
            value = f"self._iterate({call})"
        elif returns.startswith("AbstractContextManager"):
            value = f"self._block({call})"
        elif (owner, node.name) in ON_LOOP:
            value = f"self._start({call})"
        elif not isinstance(node, ast.AsyncFunctionDef):
            value = f"{method}({', '.join(given)})"
            if NAMES.search(returns):
                value = f'cast("{returns}", self._wrap({value}))'
        elif NAMES.search(returns) or (overloaded and returns != "Any"):
            value = f'cast("{returns}", self._call_wrapping({call}))'
        else:
            value = f"self._call({call})"
        comment = "  # type: ignore[misc]  # as in the asynchronous API" if _is_variadic(node, overloaded) else ""
        return [
            f"{_INDENT}def {self._signature(node, comment)}:",
            *self._documentation(node, 2),
            f"{_INDENT * 2}{'' if returns == 'None' else 'return '}{value}",
        ]

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
        given = self._arguments(node.args, skip=0)
        if isinstance(node, ast.AsyncFunctionDef):
            value = f"run_alone({', '.join([f'api.{node.name}', *given])})"
        else:
            value = f"Bus(api.{node.name}({', '.join(given)}))"
        return "\n".join([f"def {self._signature(node)}:", *self._documentation(node), f"{_INDENT}return {value}"])

    def _signature(self, node: ast.FunctionDef | ast.AsyncFunctionDef, comment: str = "") -> str:
        arguments = ast.parse(ast.unparse(node.args).join(("def f(", "): ..."))).body[0]
        assert isinstance(arguments, ast.FunctionDef)
        parts = arguments.args
        for one in [*parts.posonlyargs, *parts.args, parts.vararg, *parts.kwonlyargs, parts.kwarg]:
            if one is not None and one.annotation is not None:
                one.annotation = _expression(self._annotation(one.annotation))
        for default in [*parts.defaults, *parts.kw_defaults]:
            if default is not None:
                self._need(default, self._running)
        start = f"{node.name}({comment}\n" if comment else f"{node.name}("
        return f"{start}{ast.unparse(parts)}) -> {self._annotation(node.returns)}"

    def _annotation(self, node: ast.expr | None) -> str:
        """Return an annotation without the event loop, and note what it imports."""
        assert node is not None
        text = ast.unparse(node)
        text = re.sub(r"\bAsyncGenerator\[(.+), None\]", r"Iterator[\1]", text)
        text = text.replace("AsyncIterator", "Iterator")
        text = text.replace("AbstractAsyncContextManager", "AbstractContextManager")
        text = re.sub(r"\bHandler\b", "Callable[[Message, Unit], object]", text)
        self._need(_expression(text), self._typing)
        return text

    def _need(self, node: ast.expr, imports: set[str]) -> None:
        """Import the names of an expression."""
        for name in ast.walk(node):
            if not isinstance(name, ast.Name) or hasattr(builtins, name.id):
                continue
            home = HOMES.get(name.id)
            if home is not None:
                if home != self.name:
                    imports.add(f"from agentbus.sync.client.{home} import {name.id}")
            elif name.id in ("Iterator", "Callable"):
                imports.add(f"from collections.abc import {name.id}")
            elif name.id == "AbstractContextManager":
                imports.add(f"from contextlib import {name.id}")
            else:
                imports.add(self._homes[name.id])

    def _arguments(self, arguments: ast.arguments, skip: int) -> list[str]:
        """Return how a method passes its arguments on."""
        given = [self._argument(one) for one in [*arguments.posonlyargs, *arguments.args][skip:]]
        if arguments.vararg is not None:
            name = arguments.vararg.arg
            wrapped = NAMES.search(ast.unparse(arguments.vararg.annotation or ast.Constant("")))
            given.append(f"*unwrap_all({name})" if wrapped else f"*{name}")
        given += [f"{one.arg}={self._argument(one)}" for one in arguments.kwonlyargs]
        if arguments.kwarg is not None:
            given.append(f"**{arguments.kwarg.arg}")
        return given

    def _argument(self, one: ast.arg) -> str:
        kind = ast.unparse(one.annotation) if one.annotation is not None else ""
        if kind == "Handler":
            return f"self._handler({one.arg})"
        if kind == "Iterable[Outgoing]":
            # A generator of the caller runs on the thread of the caller.
            return f"list({one.arg})"
        if not NAMES.search(kind):
            return one.arg
        return f"unwrap_all({one.arg})" if kind.startswith("Iterable") else f"unwrap({one.arg})"

    def _documentation(self, node: ast.AST, depth: int = 1) -> list[str]:
        if isinstance(node, ast.Expr):
            assert isinstance(node.value, ast.Constant)
            text = str(node.value.value)
        else:
            text = ast.get_docstring(node) or ""  # type: ignore[arg-type]
        text = translated(text)
        quotes = 'r"""' if "\\" in text else '"""'
        text = f"{quotes}{text}" + ('\n"""' if "\n" in text else '"""')
        return textwrap.indent(text, _INDENT * depth).split("\n")


def _expression(text: str) -> ast.expr:
    """Parse an annotation, also that of ``*arguments: *Ts``."""
    call = ast.parse(f"f({text})", mode="eval").body
    assert isinstance(call, ast.Call)
    return call.args[0]


def _is_variadic(node: ast.FunctionDef | ast.AsyncFunctionDef, overloaded: bool) -> bool:
    return overloaded and node.args.vararg is not None


def _imports(tree: ast.Module, source: str) -> Iterator[tuple[str, str]]:
    """Yield the names that a module knows, each with the statement that imports it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name, f"import {alias.name}"
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"from {node.module} import {alias.name}"
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, f"from {source} import {node.name}"
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield ast.unparse(target), f"from {source} import {ast.unparse(target)}"


def translated(text: str) -> str:
    """Return documentation without the event loop."""
    text = re.sub(r"\(await ((?:[^()]|\([^()]*\))*)\)", r"\1", text)
    text = text.replace("async with", "with").replace("async for", "for").replace("async def", "def")
    text = re.sub(r"\bawait ", "", text)
    return re.sub(r"agentbus\.(connect|doctor)\(", r"agentbus.sync.\1(", text)


def modules() -> dict[str, str]:
    """Return the modules by the name of their file, not yet formatted."""
    return {f"{name}.py": Module(name).written() for name in SOURCES}


def main() -> None:
    written = modules()
    for name, text in written.items():
        (TARGET / name).write_text(text, encoding="utf-8")
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or "ruff"
    files = [str(TARGET / name) for name in written]
    subprocess.run([ruff, "check", "--quiet", "--fix", "--select", "I,UP,F401", *files], check=True)
    subprocess.run([ruff, "format", "--quiet", *files], check=True)


if __name__ == "__main__":
    main()
