"""Kill a worker with SIGKILL in the middle of a job, then recover its session and finish the work.

A worker process translates six pages in a session. Each page is one commit: the acknowledgement, the result and a
checkpoint. The process is killed during the third page. The bus reports the worker as failed and its session as
interrupted; the recovery plan resumes it. The same id registers again, restores its checkpoint, and receives the
interrupted page a second time. What was acknowledged before the kill is not repeated.

    python examples/recovery_after_kill.py          # on a temporary bus
    python examples/recovery_after_kill.py BUS      # a directory, or postgresql://user@host/database
"""

import asyncio
import os
import sys
import tempfile
from asyncio.subprocess import PIPE

import agentbus

SESSION = "translation-1"
WORKER = "translator"
PAGES = ["cover", "preface", "chapter-1", "chapter-2", "chapter-3", "index"]
FATAL = PAGES[2]


async def work() -> None:
    """Run the worker process: continue the session if it was interrupted."""
    async with (
        agentbus.connect() as bus,
        bus.session("translation", id=SESSION) as session,
        session.agent(WORKER, type="worker") as worker,
    ):
        last = await worker.restore("pages")
        done: list[str] = last.snapshot if last else []
        print(f"worker {os.getpid()} {'continues' if session.continued else 'starts'} after {done}", flush=True)
        while len(done) < len(PAGES):
            message = await worker.receive(timeout=30)
            if message is None:
                raise TimeoutError("no page arrived within 30 seconds")
            async with message as unit:
                page = message.payload["page"]
                print(f"  {page}, delivery {message.attempts}", flush=True)
                if page == FATAL and message.attempts == 1:
                    await asyncio.sleep(60)  # a slow page: the process is killed here
                done = [*done, page]
                unit.state_of(session.state.scope).increment("translated")
                unit.checkpoint("pages", done, keep=3)
                unit.progress(100 * len(done) // len(PAGES))


async def run_worker(*, kill_on: str | None = None) -> None:
    """Start the worker process and print its output; kill it when it prints a line that contains ``kill_on``."""
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, "--worker", stdout=PIPE)
    if process.stdout is None:
        raise RuntimeError("the worker has no output")
    async for line in process.stdout:
        print(line.decode(), end="")
        if kill_on is not None and kill_on in line.decode():
            process.kill()
            print(f"kill -9 {process.pid}")
    await process.wait()


async def story() -> None:
    async with agentbus.connect() as bus, bus.agent("editor", type="coordinator") as editor:
        await bus.expect(WORKER, type="worker")  # its mailbox exists before it starts
        await editor.send_many([(WORKER, "task_assignment", {"page": page}) for page in PAGES])
        await run_worker(kill_on=FATAL)

        await bus.sweep()  # detect dead processes now; a heartbeat or bus.monitor() does it within seconds
        acknowledged = (await bus.messages.list(to=WORKER, status="acked")).items
        print(f"acknowledged before the kill: {sorted(message.payload['page'] for message in acknowledged)}")

        for name in (await bus.recovery.summary()).interrupted:
            plan = await bus.recovery.plan(name)
            for agent in plan.agents:
                print(f"{agent.id} {agent.status}: {agent.error}; messages to process: {agent.waiting}")
            print(f"{name} {plan.session.status}; options: {', '.join(option.action for option in plan.options)}")
            resumed = await plan.resume(within=60)
            print(f"resumed; {', '.join(resumed.agents)} must register again within 60 seconds")

        await run_worker()

        session = await bus.sessions.open(SESSION)
        pages = (await bus.messages.list(to=WORKER, status="acked")).items
        translated = await session.state.get("translated")
        print(f"session {(await session.record()).status}; pages acknowledged {len(pages)}, translated {translated}")
        print(f"delivered twice: {[page.payload['page'] for page in pages if page.attempts == 2]}")


def main(arguments: list[str]) -> None:
    match arguments:
        case ["--worker"]:
            asyncio.run(work())
        case [url]:
            os.environ["AGENTBUS_URL"] = url  # connect() uses it, here and in the worker
            asyncio.run(story())
        case _:
            with tempfile.TemporaryDirectory(prefix="agentbus-") as directory:
                main([directory])


if __name__ == "__main__":
    main(sys.argv[1:])
