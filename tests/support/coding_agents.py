"""Fake coding agents: each is a process that runs the hooks of its configuration, and has a context that grows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from agentbus.cli.clients import (
    AFTER_TOOL,
    BEFORE_TOOL,
    NATIVE_EVENTS,
    PROMPT,
    SESSION_END,
    SESSION_START,
    STOP,
)

_HERE = Path(__file__).parent
SAMPLES: dict[str, dict[str, dict[str, Any]]] = json.loads((_HERE / "hook_samples.json").read_text())
"""The JSON of the clients: Claude Code 2.1.197, Codex CLI 0.169.0, Gemini CLI 0.61.0 and Kimi Code CLI 2.1.0, recorded
without session and directory. Cursor is written from its documentation."""
NODE = shutil.which("node")


class CodingAgent:
    """A client in a project: its session, its context, and what its model would do."""

    def __init__(self, client: str, project: Path, environment: Mapping[str, str], session: str | None = None) -> None:
        self.client = client
        self.project = project
        self.session = session or f"{client}-session-1"
        self.context: list[str] = []
        """Everything that hooks have added to it."""
        self.killed = 0
        script = [str(NODE), str(_HERE / "fake_opencode.mjs")] if client == "opencode" else [
            sys.executable, "-S", "-E", str(_HERE / "fake_client.py"), client,
        ]  # fmt: skip
        self._process = subprocess.Popen(
            script, cwd=project, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> CodingAgent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def fire(self, event: str, *, kill: float | None = None, **fields: Any) -> dict[str, Any]:
        """Let an event happen; return the answer of the client."""
        place: dict[str, Any] = {"session_id": self.session, "cwd": str(self.project)}
        if self.client == "cursor":
            place = {"conversation_id": self.session, "workspace_roots": [str(self.project)]}
        native = NATIVE_EVENTS[self.client][event][0]
        sample = SAMPLES.get(self.client, {}).get(native, {})
        asked = {"event": native, "input": {**sample, **place, **fields}, "kill": kill}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert not answer["broken"], answer
        self.context += [*answer["context"], *answer["stop"]]
        self.killed += answer["killed"]
        return answer

    def start(self, source: str = "startup") -> str:
        return _text(self.fire(SESSION_START, source=source)["context"])

    def prompt(self, text: str = "continue") -> str:
        prompt = [{"type": "text", "text": text}] if self.client == "kimi" else text
        return _text(self.fire(PROMPT, prompt=prompt)["context"])

    def tool(self, *, during: Any = None, kill: float | None = None, size: int = 10) -> str:
        """Call a tool; ``during`` is called while it runs. Return what is in the context after it."""
        tool: dict[str, Any] = (
            {} if self.client in SAMPLES else {"tool_name": "Bash", "tool_input": {"command": "make"}}
        )
        self.fire(BEFORE_TOOL, **tool)
        if during is not None:
            during()
        return _text(self.fire(AFTER_TOOL, kill=kill, **tool, **self._output("x" * size))["context"])

    def _output(self, text: str) -> dict[str, Any]:
        """Return the output of a tool, as the client sends it."""
        if self.client == "kimi":
            return {"tool_output": text}
        if self.client == "gemini":
            return {"tool_response": {"llmContent": text, "returnDisplay": text}}
        return {"tool_response": text if self.client == "codex" else {"stdout": text, "stderr": ""}}

    def stop(self, *, continued: bool = False) -> str | None:
        """Stop; return the reason why it may not."""
        fields = {"loop_count": int(continued)} if self.client == "cursor" else {"stop_hook_active": continued}
        return _text(self.fire(STOP, **fields)["stop"]) or None

    def end(self, reason: str = "exit") -> None:
        self.fire(SESSION_END, reason=reason)


def _text(texts: list[str]) -> str:
    return "\n".join(texts)


def messages(text: str) -> list[dict[str, Any]]:
    """Return the messages in a context. Raises if one of them is no JSON, or outside of its frame."""
    found: list[dict[str, Any]] = []
    frames = re.findall(r"^\[agentbus\] (\d+) messages? for .*\n((?:\{.*\n)*)\[agentbus\] End of", text, re.MULTILINE)
    for count, lines in frames:
        framed = [json.loads(line) for line in lines.splitlines()]
        assert len(framed) == int(count)
        found += framed
    return found
