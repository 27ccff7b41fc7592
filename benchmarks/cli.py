"""Benchmark single calls of the command line: ``python -m benchmarks.cli``.

Every command is a new process, as in a shell, interleaved with an interpreter that only imports the shared
dependencies. Bytecode is compiled first, as an installer does.
"""

from __future__ import annotations

import compileall
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import agentbus
from benchmarks.command import Options, Suite
from benchmarks.measure import Results, Series
from benchmarks.progress import Progress
from benchmarks.report import Check
from benchmarks.run import main

BASE = "base"
MAX_RATIO = 1.5
"""Maximum duration of a command, as a multiple of the base."""
STARTS = 20
LOOPS = 50
EACH = 20
CROWD = "crowd"
START = "start"
_IMPORTS = "import sqlite3, argparse, socket, msgspec"
_CALLS = {
    "send": ("send", "worker-1", "note", '{"n": 1}'),
    "receive": ("receive", "--ack"),
    "state get": ("state", "get", "scope"),
    "state set": ("state", "set", "scope", '{"files": 12}'),
    "heartbeat": ("heartbeat",),
}


def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
    compileall.compile_dir(Path(agentbus.__file__).parent, quiet=1)
    agent = str(Path(sys.executable).with_name("agentbus"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AGENTBUS_")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["AGENTBUS_URL"] = str(directory / "bus")
    run = _Runner(environment)
    run([agent, "init"])
    run([agent, "register", "worker-1", "--type", "worker"])
    environment["AGENTBUS_AGENT"] = "worker-1#1"
    run([agent, "state", "set", "scope", "1"])
    chosen = {name: [agent, *words] for name, words in _CALLS.items() if name in options.chosen}
    starts = 3 if options.quick else STARTS
    progress.expect((starts if chosen else 0) + (CROWD in options.chosen))
    if chosen:
        _start({BASE: [sys.executable, "-c", _IMPORTS], **chosen}, starts, run, results, progress)
    if CROWD in options.chosen:
        loops, each = (10, 1) if options.quick else (LOOPS, EACH)
        progress.say(f"{loops} shell loops")
        crowd = results.add(Series(CROWD, "loops", "s", title=f"{loops} shell loops, {each} sends each"))
        crowd.values.append(_crowd(agent, environment, loops, each))
    return {"starts": starts}


def _start(calls: dict[str, list[str]], starts: int, run: _Runner, results: Results, progress: Progress) -> None:
    """Time every call in turn, ``starts`` times."""
    series = {
        name: results.add(Series(START, name, "ms", title=f"`{_IMPORTS}`" if name == BASE else f"`agentbus {name}`"))
        for name in calls
    }
    for count in range(starts):
        progress.say(f"start {count + 1} of {starts}")
        for name, words in calls.items():
            started = time.perf_counter()
            run(words)
            series[name].values.append((time.perf_counter() - started) * 1000)


def _crowd(agent: str, environment: dict[str, str], count: int, each: int) -> float:
    """Return the duration of concurrent shell loops that send. Raise if a message is lost or a command fails."""
    run = _Runner(environment)
    run([agent, "register", "target", "--type", "worker"])
    started = time.perf_counter()
    loop = f'for n in $(seq {each}); do "{agent}" send target note "$n" || exit 1; done'
    loops = [subprocess.Popen(["sh", "-c", loop], env=environment, stdout=subprocess.DEVNULL) for _ in range(count)]
    codes = {one.wait() for one in loops}
    taken = time.perf_counter() - started
    stats = json.loads(subprocess.check_output([agent, "status", "--json"], env=environment))["data"]
    there = next((queue["queued"] for queue in stats["queues"] if queue["recipient"] == "target"), 0)
    if codes != {0} or there != count * each:
        raise RuntimeError(f"{there} of {count * each} messages were stored; exit codes {codes}")
    return taken


class _Runner:
    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment

    def __call__(self, words: list[str]) -> None:
        subprocess.run(words, env=self._environment, stdout=subprocess.DEVNULL, check=True)


def checks(results: Results) -> list[Check]:
    """Compare each command with the base of the same run."""
    found = []
    for name in _CALLS:
        ratio = results.ratio_of_medians(START, name, BASE)
        if ratio is not None:
            found.append(Check(f"`agentbus {name}`, against the imports alone", ratio, "x", most=MAX_RATIO))
    return found


SUITE = Suite(
    name="cli",
    title="The command line",
    about="Time single calls of the command line against an interpreter that imports what they need.",
    choices=(*_CALLS, CROWD),
    part_of=lambda choice: choice if choice == CROWD else START,
    rate="calls/s",
    titles={},
    notes=lambda: ("Every call is a new process, as in a shell; bytecode is compiled before, as by an installer.",),
    measure=measure,
    checks=checks,
    long=frozenset({CROWD}),
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
