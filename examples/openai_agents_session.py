"""Kill a process in the middle of a conversation of the OpenAI Agents SDK, and continue it in another process.

The conversation is on a bus. The first process answers one question and is killed with SIGKILL. The second asks another
question in the same session: its model gets everything that was said before. The model is a script, so that the example
needs no key and no network; leave it out of ``Agent`` to ask a real one.

    python examples/openai_agents_session.py          # on a temporary bus
    python examples/openai_agents_session.py BUS      # a directory, or postgresql://user@host/database
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

try:
    from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage
    from openai.types.responses import ResponseOutputMessage, ResponseOutputText
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}; in the checkout: python -m pip install '.[openai-agents]'") from None

import agentbus
from agentbus.integrations.openai_agents import AgentBusSession

SESSION = "chat-7"


class Script(Model):
    """A model that answers with the questions that it was given."""

    async def get_response(self, system_instructions: Any, input: Any, *others: Any, **options: Any) -> ModelResponse:
        questions = [item["content"] for item in input if item.get("role") == "user"]
        content = ResponseOutputText(type="output_text", text=f"I was asked {questions}", annotations=[])
        message = ResponseOutputMessage(
            id=f"msg-{len(questions)}", type="message", role="assistant", status="completed", content=[content]
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError


async def ask(question: str) -> None:
    """Ask one question, in a process of its own; do not end."""
    async with agentbus.connect() as bus:
        session = AgentBusSession(SESSION, bus)
        agent = Agent(name="assistant", model=Script())
        result = await Runner.run(agent, question, session=session, run_config=RunConfig(tracing_disabled=True))
        print(result.final_output, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


async def story() -> None:
    for question in ("What is a bus?", "Who needs one?"):
        process = subprocess.run([sys.executable, __file__, "--ask", question], check=False)  # noqa: ASYNC221
        print(f"the process ended with signal {-process.returncode}", flush=True)
    async with agentbus.connect() as bus:
        (history,) = (await bus.histories.list("openai")).items
        print(f"history {history.name} has {history.items} items")
        # A copy is another conversation with the same beginning.
        await bus.histories.copy("openai", SESSION, "chat-7-fork")
        fork = AgentBusSession("chat-7-fork", bus)
        await fork.pop_item()
        original = await bus.histories.items("openai", SESSION)
        print(f"the fork has {len(await fork.get_items())} items, the original {len(original)}")


def main(arguments: list[str]) -> None:
    match arguments:
        case ["--ask", question]:
            asyncio.run(ask(question))
        case [url]:
            os.environ["AGENTBUS_URL"] = url  # connect() uses it, here and in the other processes
            asyncio.run(story())
        case _:
            with tempfile.TemporaryDirectory(prefix="agentbus-") as directory:
                main([directory])


if __name__ == "__main__":
    main(sys.argv[1:])
