"""A step that must run only once, and whose worker was killed: people are asked, though no worker is there."""

from __future__ import annotations

import subprocess
import sys

from tests.cli.conftest import TIMEOUT, Shell

_DIES = """
import asyncio, os, agentbus

@agentbus.workflow("paying")
async def paying(task: agentbus.Task) -> str:
    return await task.step("charge", lambda: os._exit(9), once=True, returns=str)

async def main() -> None:
    async with agentbus.connect(".agentbus") as bus:
        await bus.tasks.start(paying, id="order-7")
        await bus.tasks.run_worker(paying)

asyncio.run(main())
"""


def test_what_became_of_a_step_is_asked_for_though_no_worker_is_there(shell: Shell) -> None:
    died = subprocess.run([sys.executable, "-c", _DIES], cwd=shell.directory, check=False, timeout=TIMEOUT)
    assert died.returncode == 9
    answer = "agentbus task settle order-7 charge --result JSON"
    (asked,) = shell.told("task", "approvals")
    assert (asked["task"], asked["kind"], asked["name"], asked["command"]) == ("order-7", "step", "charge", answer)
    assert [one["command"] for one in shell.told("status")["asked"]] == [answer]
    listed = shell.run("task", "list")
    assert '["step:charge"]' in listed.out
    assert listed.err == "1 open question: agentbus task approvals\n"
    shell.run("task", "settle", "order-7", "charge", "--result", '"paid"', "--by", "ada")
    assert shell.told("task", "approvals") == []
    assert shell.told("task", "show", "order-7")["task"]["waits"] == []
