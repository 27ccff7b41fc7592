"""Resume a workflow of the Microsoft Agent Framework on another process after kill -9.

The workflow passes a draft from one executor to the next; the framework saves a checkpoint after each superstep, on the
bus. This program kills the process while the second executor works. Another process finds the latest checkpoint and
continues from it: the first executor does not run again.

    python examples/agent_framework_checkpoints.py        # on a temporary bus; needs the extra agent-framework
    python examples/agent_framework_checkpoints.py BUS    # a directory, or postgresql://user@host/database
"""

import asyncio
import os
import subprocess
import sys
import tempfile

try:
    from agent_framework import Executor, Workflow, WorkflowBuilder, WorkflowContext, handler
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}; in the checkout: python -m pip install '.[agent-framework]'") from None

import agentbus
from agentbus.integrations.agent_framework import AgentBusCheckpointStorage

NAME = "article"


class Writer(Executor):
    @handler
    async def write(self, subject: str, ctx: WorkflowContext[str]) -> None:
        print(f"  process {os.getpid()} writes about {subject}", flush=True)
        await ctx.send_message(f"a draft about {subject}")


class Editor(Executor):
    @handler
    async def edit(self, draft: str, ctx: WorkflowContext[str]) -> None:
        print(f"  process {os.getpid()} edits {draft}", flush=True)
        if "--slow" in sys.argv:
            await asyncio.sleep(60)  # this program kills the process meanwhile
        await ctx.send_message(draft.replace("draft", "text"))


class Publisher(Executor):
    @handler
    async def publish(self, text: str, ctx: WorkflowContext[None, str]) -> None:
        print(f"  process {os.getpid()} publishes {text}", flush=True)
        await ctx.yield_output(f"published: {text}")


def build() -> Workflow:
    writer, editor, publisher = Writer(id="writer"), Editor(id="editor"), Publisher(id="publisher")
    builder = WorkflowBuilder(name=NAME, start_executor=writer, output_from=[publisher])
    return builder.add_edge(writer, editor).add_edge(editor, publisher).build()


async def work() -> None:
    """Start the workflow, or resume it if there is a checkpoint."""
    async with agentbus.connect() as bus:
        storage = AgentBusCheckpointStorage(bus)
        latest = await storage.get_latest(workflow_name=NAME)
        if latest is None:
            result = await build().run("the sea", checkpoint_storage=storage)
        else:
            print(f"  process {os.getpid()} resumes after superstep {latest.iteration_count}", flush=True)
            result = await build().run(checkpoint_id=latest.checkpoint_id, checkpoint_storage=storage)
        print(f"result: {result.get_outputs()}", flush=True)


def run(*words: str, kill_on: str | None = None) -> None:
    """Start a process and print its output; kill it when it prints a line that contains ``kill_on``."""
    with subprocess.Popen([sys.executable, __file__, "--work", *words], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="")
            if kill_on is not None and kill_on in line:
                process.kill()


async def report() -> None:
    async with agentbus.connect(create=False) as bus:
        for history in (await bus.histories.list("agent-framework")).items:
            print(f"on the bus: {history.items} checkpoints of {history.name!r}")


def story() -> None:
    run("--slow", kill_on="edits")
    print("killed; another process resumes")
    run()
    asyncio.run(report())


def main(arguments: list[str]) -> None:
    match arguments:
        case ["--work", *_]:
            asyncio.run(work())
        case [url]:
            os.environ["AGENTBUS_URL"] = url  # connect() uses it
            story()
        case _:
            with tempfile.TemporaryDirectory(prefix="agentbus-") as directory:
                main([directory])


if __name__ == "__main__":
    main(sys.argv[1:])
