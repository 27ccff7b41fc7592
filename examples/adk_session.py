"""Kill a process of Google's Agent Development Kit, and continue its session in another process.

Sessions, their events and state are on a bus. An agent counts its turns in the state of the session, of the user and of
the app. Each of two processes runs some turns and is then killed with SIGKILL. An event and the state that it changes
are one commit. The agent is a script, so that the example needs no key and no network.

    python examples/adk_session.py          # on a temporary bus
    python examples/adk_session.py BUS      # a directory, or postgresql://user@host/database
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from typing import Any

try:
    from google.adk.agents import BaseAgent
    from google.adk.events import Event, EventActions
    from google.adk.runners import Runner
    from google.genai import types
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}; in the checkout: python -m pip install '.[adk]'") from None

import agentbus
from agentbus.integrations.adk import AgentBusSessionService

APP = "shop"
PROCESSES = [["ada/order-1", "ada/order-2"], ["ada/order-1", "bob/order-1"]]
"""The turns of each process: a user and a session."""


class Counter(BaseAgent):
    """An agent that counts its turns."""

    async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
        state = ctx.session.state
        delta = {f"{scope}turns": state.get(f"{scope}turns", 0) + 1 for scope in ("", "user:", "app:")}
        text = (
            f"turn {delta['turns']} of the session, {delta['user:turns']} of the user, {delta['app:turns']} of the app"
        )
        yield Event(
            author=self.name,
            invocation_id=ctx.invocation_id,
            content=types.Content(role="model", parts=[types.Part(text=text)]),
            actions=EventActions(state_delta=delta),
        )


async def run(turns: list[str]) -> None:
    """Run turns, in a process of its own; do not end."""
    async with agentbus.connect() as bus:
        service = AgentBusSessionService(bus)
        runner = Runner(app_name=APP, agent=Counter(name="counter"), session_service=service, auto_create_session=True)
        message = types.Content(role="user", parts=[types.Part(text="hello")])
        for turn in turns:
            user, session = turn.split("/")
            async for event in runner.run_async(user_id=user, session_id=session, new_message=message):
                for part in event.content.parts if event.content else []:
                    print(f"{turn}: {part.text}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


async def story() -> None:
    for turns in PROCESSES:
        process = subprocess.run([sys.executable, __file__, "--turns", *turns], check=False)  # noqa: ASYNC221
        print(f"the process ended with signal {-process.returncode}", flush=True)
    async with agentbus.connect() as bus:
        service = AgentBusSessionService(bus)
        for session in (await service.list_sessions(app_name=APP)).sessions:
            print(f"stored: {session.user_id}/{session.id}, turns: {session.state['turns']}")
        print(f"histories: {', '.join(history.name for history in (await bus.histories.list('adk')).items)}")


def main(arguments: list[str]) -> None:
    match arguments:
        case ["--turns", *turns]:
            asyncio.run(run(turns))
        case [url]:
            os.environ["AGENTBUS_URL"] = url  # connect() uses it, here and in the other processes
            asyncio.run(story())
        case _:
            with tempfile.TemporaryDirectory(prefix="agentbus-") as directory:
                main([directory])


if __name__ == "__main__":
    main(sys.argv[1:])
