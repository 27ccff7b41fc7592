"""Distribute jobs to a pool of worker processes, with each result recorded exactly once.

The planner sends 24 jobs to a pool in one commit. Three workers, each in a process of its own, compete for them.
A worker records its result, reports it and acknowledges the job in one commit (``async with message as unit``).
One worker crashes before that commit: its job returns to the pool, and a replacement starts under the same id.

    python examples/planner_and_pool.py             # on a temporary bus
    python examples/planner_and_pool.py BUS         # a directory, or postgresql://user@host/database
"""

import asyncio
import os
import sys
import tempfile

import agentbus

JOBS = agentbus.pool("primes")
WORKERS = ("worker-1", "worker-2", "worker-3")
STEP = 1000
RANGES = [(start, start + STEP) for start in range(0, 24 * STEP, STEP)]
CRASHING = RANGES[7]


def is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


async def work(name: str) -> None:
    """Run one worker process: handle jobs until the planner sends a control message."""
    async with agentbus.connect() as bus, bus.agent(name, type="worker", pools=[JOBS]) as worker:
        async for message in worker.inbox():
            async with message as unit:
                if message.type == "control":
                    break
                start, end = message.payload
                found = sum(map(is_prime, range(start, end)))
                if (start, end) == CRASHING and message.attempts == 1:
                    os._exit(1)  # the process dies here, after the work and before the commit
                unit.state_of("primes").increment("total", found)
                unit.state.increment("jobs")
                unit.send("planner", "completion_notification", {"start": start, "found": found})


async def supervise(name: str) -> None:
    """Keep a worker process running until it ends normally; replace it if it crashes."""
    while True:
        process = await asyncio.create_subprocess_exec(sys.executable, __file__, "--worker", name)
        try:
            status = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
        if status == 0:
            return
        print(f"{name} exited with status {status}; starting a replacement")


async def plan() -> None:
    async with agentbus.connect() as bus, bus.agent("planner", type="planner") as planner:
        await bus.declare(JOBS)  # the jobs can be sent before the first worker joins
        for name in WORKERS:
            await bus.expect(name, type="worker")  # so can the last message to a worker that starts late
        await planner.send_many([(JOBS, "task_assignment", job) for job in RANGES])
        print(f"planner sent {len(RANGES)} jobs to {JOBS} in one commit")

        async with asyncio.TaskGroup() as processes:
            for name in WORKERS:
                processes.create_task(supervise(name))
            results: dict[int, int] = {}
            async for message in planner.inbox():
                async with message:
                    results[message.payload["start"]] = message.payload["found"]
                await planner.progress(100 * len(results) // len(RANGES))
                if len(results) == len(RANGES):
                    break
            await planner.send_many([(name, "control", {"action": "stop"}) for name in WORKERS])

        jobs = (await bus.messages.list(to=JOBS)).items
        total = await bus.state("primes").get("total")
        print(f"jobs {len(jobs)}, deliveries {sum(job.attempts for job in jobs)}, results {len(results)}")
        print(f"primes below {RANGES[-1][1]}: {sum(results.values())} reported, {total} counted")
        for name in WORKERS:
            record = await bus.agents.get(name)
            if record is not None:
                done = await bus.state(name).get("jobs", 0)
                print(f"{name} {record.status}, incarnation {record.epoch}, jobs {done}")


def main(arguments: list[str]) -> None:
    match arguments:
        case ["--worker", name]:
            asyncio.run(work(name))
        case [url]:
            os.environ["AGENTBUS_URL"] = url  # connect() uses it, here and in the workers
            asyncio.run(plan())
        case _:
            with tempfile.TemporaryDirectory(prefix="agentbus-") as directory:
                main([directory])


if __name__ == "__main__":
    main(sys.argv[1:])
