"""A process that has no file descriptor left is told so, whatever it was that could not be opened."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_SCRIPT = """
import asyncio, json, os, resource, sys
import agentbus
from agentbus.errors import AgentBusError

place, told = sys.argv[1], []

async def connect(left):
    async with agentbus.connect(place + "/bus") as other:
        await other.stats()

def held(left):
    '''Take all descriptors but ``left``.'''
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    for _ in range(left):
        os.close(taken.pop())
    return taken

async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    async with agentbus.connect(place + "/bus") as bus:
        a = await bus.register("a", type="worker")
        await bus.export(place + "/whole.jsonl.gz")
        attempts = {
            "connect": connect,
            "export": lambda left: bus.export(f"{place}/{left}.jsonl.gz"),
            "backup": lambda left: bus.backup(f"{place}/{left}.db"),
            "import": lambda left: bus.import_archive(f"{place}/whole.jsonl.gz"),
        }
        for name, attempt in attempts.items():
            for left in range(16):
                taken = held(left)
                try:
                    await attempt(left)
                    code = "done"
                except AgentBusError as error:
                    code = error.code
                except Exception as error:
                    code = repr(error)
                for one in taken:
                    os.close(one)
                told.append([name, left, code])
        await a.send("a", "note", 1)
    print(json.dumps(told))

asyncio.run(main())
"""


def test_every_call_that_finds_no_descriptor_is_a_named_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(tmp_path)], capture_output=True, timeout=120, check=False, text=True
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    codes: dict[str, set[str]] = {}
    for name, left, code in told:
        codes.setdefault(name, set()).add(code)
        assert left or code == "too_many_files", (name, code)
    for name in ("connect", "export", "backup", "import"):
        assert codes[name] == {"too_many_files", "done"}, name
