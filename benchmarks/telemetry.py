"""The cost of telemetry: ``python -m benchmarks.telemetry`` measures messages without its hooks, with them, and traced.

Two measures: the CPU time, and the instructions of the interpreter within this package, on the thread of the loop.
The second is the same on every run, and overstates a difference: the commit is not part of it. SQLite commits small
batches on the thread of the loop while they are fast, and on another thread while the machine is busy: for this measure
always on the other one.

The hooks are the checks of ``core.tracer`` on the way of a message. For comparison they are removed from the source of
the functions that have them, whose code is replaced for the length of a measurement.
"""

from __future__ import annotations
import __future__

import ast
import asyncio
import inspect
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import agentbus
from agentbus import telemetry
from agentbus.api import agent, message, receiving, sending
from agentbus.engine.sqlite import writer
from benchmarks.machine import database_directory
from benchmarks.measure import in_new_directory
from benchmarks.payload import PAYLOAD
from benchmarks.report import table

MODULES = (agent, message, receiving, sending)
MESSAGES = 8
"""Messages of a lap."""
LAPS = 100
TRACED_LAPS = 60
"""Laps of one message each."""
SLICES = 5
HOOKS = ("core.tracer", "self._span")
"""None where tracing is off."""
PACKAGE = str(Path(agentbus.__file__).parent)
Lap = Callable[[], Awaitable[object]]
Measure = Callable[[Lap, int], Awaitable[float]]
"""Return how much of the best lap an item takes, of a number of items."""


class _Removal(ast.NodeTransformer):
    """Removes the hooks: each check is decided as where tracing is off."""

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        if ast.unparse(node.left) not in HOOKS or ast.unparse(node.comparators[0]) != "None":
            return node
        return ast.Constant(isinstance(node.ops[0], ast.Is))

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.test, ast.Constant):
            return node.body if node.test.value else node.orelse
        return node

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        if isinstance(node.test, ast.Constant):
            return node.body if node.test.value else node.orelse
        return node

    def visit_With(self, node: ast.With) -> Any:
        self.generic_visit(node)
        return node.body if ast.unparse(node.items[0].context_expr) == "core.NO_SPAN" else node


def hooked_functions() -> Iterator[FunctionType]:
    """Yield the functions on the way of a message that have a hook."""
    for module in MODULES:
        classes = [value for value in vars(module).values() if inspect.isclass(value)]
        owned = [value for one in classes if one.__module__ == module.__name__ for value in vars(one).values()]
        for function in [*vars(module).values(), *owned]:
            if not isinstance(function, FunctionType) or function.__module__ != module.__name__:
                continue
            if any(f"{hook} is" in inspect.getsource(function) for hook in HOOKS):
                yield function


def without_hooks(function: FunctionType) -> CodeType:
    """Return the code of a function without its hooks."""
    source = textwrap.dedent(inspect.getsource(function))
    tree = ast.fix_missing_locations(_Removal().visit(ast.parse(source)))
    flags = function.__code__.co_flags & __future__.annotations.compiler_flag
    scope: dict[str, Any] = {}
    exec(compile(tree, function.__code__.co_filename, "exec", flags), function.__globals__, scope)  # noqa: S102
    code: CodeType = scope[function.__name__].__code__
    return code


@contextmanager
def hooks_removed() -> Iterator[None]:
    """Run the functions on the way of a message without their hooks, for the length of a block."""
    replaced = [(function, function.__code__, without_hooks(function)) for function in hooked_functions()]
    for function, _, code in replaced:
        function.__code__ = code
    try:
        yield
    finally:
        for function, code, _ in replaced:
            function.__code__ = code


@contextmanager
def commits_on_thread() -> Iterator[None]:
    """Commit on the thread of the writer alone, for the length of a block, however fast the batches are."""
    batches = writer._MAX_INLINE_BATCHES
    writer._MAX_INLINE_BATCHES = 0
    try:
        yield
    finally:
        writer._MAX_INLINE_BATCHES = batches


@contextmanager
def recording() -> Iterator[None]:
    """Record spans and metrics, which nothing exports, for the length of a block."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider

    telemetry.enable(TracerProvider(), MeterProvider())
    try:
        yield
    finally:
        telemetry.disable()


async def cpu_time(lap: Lap, items: int) -> float:
    """Return the microseconds of CPU time of an item, in the best of several laps."""
    best = float("inf")
    for _ in range(LAPS):
        start = time.process_time()
        await lap()
        best = min(best, time.process_time() - start)
    return 1e6 * best / items


async def instructions(lap: Lap, items: int) -> float:
    """Return the instructions of an item within the package, on the thread of the event loop, in the best of several
    laps."""
    count = 0

    def inside(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "opcode"
        return inside

    def enter(frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return inside

    best = float("inf")
    before = sys.gettrace()
    for _ in range(TRACED_LAPS):
        count = 0
        sys.settrace(enter)
        try:
            await lap()
        finally:
            sys.settrace(before)
        best = min(best, count)
    return best / items


def messages(measure: Measure, directory: Path, *, hooks: bool = True, traced: bool = False) -> float:
    """Measure messages that are sent, received and handled in a block, one after another. Nothing is synced: the disk
    would hide the difference."""

    async def work() -> float:
        async with agentbus.connect(directory / "bus", durability="process") as bus:
            worker = await bus.register("a", type="worker")

            count = 1 if measure is instructions else MESSAGES

            async def lap() -> None:
                for _ in range(count):
                    await worker.send("a", "note", PAYLOAD)
                    received = await worker.receive(timeout=0)
                    assert received is not None
                    async with received:
                        pass

            # The first ones prepare statements.
            await lap()
            return await measure(lap, count)

    with ExitStack() as stack:
        if measure is instructions:
            stack.enter_context(commits_on_thread())
        if not hooks:
            stack.enter_context(hooks_removed())
        if traced:
            stack.enter_context(recording())
        return asyncio.run(work())


def main() -> None:
    sides = {"without hooks": (False, False), "off": (True, False), "on": (True, True)}
    directory = Path(database_directory())
    rows: list[tuple[str, ...]] = []
    found: dict[str, dict[str, float]] = {"cpu": dict.fromkeys(sides, float("inf")), "instructions": {}}
    for side, (hooks, traced) in sides.items():
        found["instructions"][side] = in_new_directory(
            directory, partial(messages, instructions, hooks=hooks, traced=traced)
        )
    for _ in range(SLICES):
        for side, (hooks, traced) in sides.items():
            measured = in_new_directory(directory, partial(messages, cpu_time, hooks=hooks, traced=traced))
            found["cpu"][side] = min(found["cpu"][side], measured)
    for side in sides:
        row = [side]
        for values in found.values():
            row += [f"{values[side]:,.0f}", f"{values[side] / values['without hooks']:.3f}x"]
        rows.append(tuple(row))
    print(table(("telemetry", "CPU µs a message", "", "instructions", ""), rows))


if __name__ == "__main__":
    main()
