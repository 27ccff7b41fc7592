"""Run a durable task that waits for an operator's approval and survives the death of its worker.

The workflow builds a release, asks for approval, and publishes it. No process stays alive while the approval is open.
An operator approves on the command line; the next worker resumes the task. That worker is killed in the middle of
publishing, and another one finishes the task. A finished step never runs again.

    python examples/approval_task.py                # on a temporary bus
    python examples/approval_task.py BUS            # a directory, or postgresql://user@host/database
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import agentbus

TASK = "release-1.4"
AGENTBUS = Path(sys.executable).with_name("agentbus")  # the command installed beside this Python


def build(version: str) -> str:
    print(f"  worker {os.getpid()} builds {version}", flush=True)
    return f"app-{version}.tar.gz"


async def publish(task: agentbus.Task, package: str) -> str:
    print(f"  worker {os.getpid()} publishes {package}, attempt {task.attempt}", flush=True)
    if task.attempt == 1:
        await asyncio.sleep(60)  # a slow upload: this program kills the worker during the first attempt
    return f"https://example.org/{package}"


@agentbus.workflow("release")
async def release(task: agentbus.Task, version: str) -> str:
    package = await task.step("build", build, version)
    verdict = await task.approval("publish", show={"package": package})
    if not verdict.approved:
        return f"rejected by {verdict.by}: {verdict.reason}"
    return await task.step("publish", publish, task, package)


async def work() -> None:
    """Run one worker process: take tasks until none can be taken."""
    async with agentbus.connect() as bus:
        await bus.tasks.run_worker(release, until_idle=True)


def run_worker(*, kill_on: str | None = None) -> None:
    """Start a worker process and print its output; kill it when it prints a line that contains ``kill_on``."""
    with subprocess.Popen([sys.executable, __file__, "--worker"], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="")
            if kill_on is not None and kill_on in line:
                process.kill()


def operator(*words: str) -> str:
    """Run a command as an operator does in a terminal."""
    return subprocess.run([AGENTBUS, *words], check=True, stdout=subprocess.PIPE, text=True).stdout


async def start() -> None:
    async with agentbus.connect() as bus:
        await bus.tasks.start(release, "1.4", id=TASK)


async def report() -> None:
    async with agentbus.connect(create=False) as bus:
        for step in await bus.tasks.steps(TASK):
            print(f"  {step.kind} {step.name}: {step.status}, attempt {step.attempt}")
        (approval,) = await bus.tasks.approvals(TASK, status="approved")
        print(f"approved by {approval.by}; result: {await bus.tasks.result(TASK, timeout=10)}")


def story() -> None:
    asyncio.run(start())
    print("the first worker runs until the approval is open, then it ends")
    run_worker()
    waiting, kind, name = operator("task", "approvals").split("\t")[:3]
    print(f"no worker is running; {waiting} waits for {kind} {name!r}")
    operator("task", "approve", TASK, name, "--by", "ada")
    print("ada approved; the second worker is killed while it publishes")
    run_worker(kill_on="publishes")
    print("the third worker repeats the interrupted step only")
    run_worker()
    asyncio.run(report())


def main(arguments: list[str]) -> None:
    match arguments:
        case ["--worker"]:
            asyncio.run(work())
        case [url]:
            os.environ["AGENTBUS_URL"] = url  # connect() and the command line use it
            story()
        case _:
            with tempfile.TemporaryDirectory(prefix="agentbus-") as directory:
                main([directory])


if __name__ == "__main__":
    main(sys.argv[1:])
