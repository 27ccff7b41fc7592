"""Resume a session of the Claude Agent SDK on another machine, from the transcript on a bus.

The first machine asks a question, and all its files are deleted. The second machine has only the bus: it resumes the
session, and the model gets what was said before. Both run the real Claude Code that the SDK brings. The model behind it
is a script on loopback, so that the example needs no key and no network; with ``--real`` it is that of your account.

    python examples/claude_resume.py [--real]          # on a temporary bus
    python examples/claude_resume.py [--real] BUS      # a directory, or postgresql://user@host/database
"""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

try:
    from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}; in the checkout: python -m pip install '.[claude]'") from None

import agentbus
from agentbus.integrations.claude import AgentBusSessionStore


class Script(BaseHTTPRequestHandler):
    """The Messages API of a model that answers with the number of questions that it was given."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        questions = sum(message["role"] == "user" for message in body.get("messages", ()))
        text = {"type": "text", "text": f"I know {questions} question{'s' * (questions > 1)}"}
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": body.get("model"), "usage": usage}
        end = {"stop_reason": "end_turn", "stop_sequence": None}
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {**text, "type": "text_delta"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": end, "usage": usage},
            {"type": "message_stop"},
        ]
        stream = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        answer = stream if body.get("stream") else json.dumps({**message, **end, "content": [text]})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if body.get("stream") else "application/json")
        self.send_header("Content-Length", str(len(answer.encode())))
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


@contextmanager
def scripted_model() -> Iterator[dict[str, str]]:
    """Run the model; yield the environment in which Claude Code asks it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Script)
    Thread(target=server.serve_forever, daemon=True).start()
    yield {
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{server.server_port}",
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    server.shutdown()
    server.server_close()


async def ask(
    store: AgentBusSessionStore, machine: Path, question: str, env: dict[str, str], resume: str | None
) -> str:
    """Ask a question on a machine that has its own files, and return the id of the session."""
    home = machine / "home"
    home.mkdir(parents=True)
    options = ClaudeAgentOptions(
        session_store=store,
        resume=resume,
        cwd=machine.parent,
        # A real account is in the user's own files.
        env={**env, "HOME": str(home), "CLAUDE_CONFIG_DIR": str(home)} if env else {},
        tools=[],
        setting_sources=[],
        max_turns=1,
    )
    session = ""
    async for message in query(prompt=question, options=options):
        if isinstance(message, ResultMessage):
            print(f"{machine.name} machine: {message.result}", flush=True)
            session = message.session_id
    return session


async def story(env: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="machines-") as directory:
        async with agentbus.connect() as bus:
            store = AgentBusSessionStore(bus)
            first, second = Path(directory, "first"), Path(directory, "second")
            session = await ask(store, first, "What is a bus?", env, None)
            shutil.rmtree(first)
            print("the files of the first machine are deleted", flush=True)
            await ask(store, second, "Who needs one?", env, session)
            (history,) = (await bus.histories.list("claude")).items
            entries = [json.loads(item.body) for item in await bus.histories.items("claude", history.name)]
            answers = [entry for entry in entries if entry["type"] == "assistant"]
            print(f"the bus has one history with {len(answers)} answers")
            print(f"summary: {json.loads(history.meta['summary'])['first_prompt']}")


def main(arguments: list[str]) -> None:
    match arguments:
        case ["--real", *rest]:
            run(rest, {})
        case rest:
            with scripted_model() as env:
                run(rest, env)


def run(arguments: list[str], env: dict[str, str]) -> None:
    match arguments:
        case [url]:
            os.environ["AGENTBUS_URL"] = url
            asyncio.run(story(env))
        case _:
            with tempfile.TemporaryDirectory(prefix="agentbus-") as directory:
                run([directory], env)


if __name__ == "__main__":
    main(sys.argv[1:])
