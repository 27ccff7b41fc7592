"""A coding agent without a model: a process that reads its configuration from where the client has it, and runs the
hooks as the client's documentation says.

Each line on standard input is an event: {"event", "input", "kill"}. The answer is a line with what has entered the
context, why it was kept from stopping, and what the client would report as an error of a hook. ``kill`` ends the hook
after that many seconds, as a timeout does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
from typing import Any

CONTEXT_LIMIT = 10_000
"""Characters beyond which clients cut what a hook adds."""
CONFIGURATIONS = {
    "claude": (".claude/settings.json",),
    "codex": (".codex/hooks.json",),
    "gemini": (".gemini/settings.json",),
    "cursor": (".cursor/hooks.json",),
    "kimi": (".kimi-code/config.toml",),
}
"""Where each client has its hooks, below the home directory and below the project."""
OBSERVED = {"kimi": {"SessionStart", "SessionEnd", "PreToolUse", "PostToolUse", "PostToolUseFailure"}}
"""Events whose output the client ignores."""
STRICT = {"codex"}
"""Clients that refuse output with fields that they do not know."""
KNOWN = {"continue", "decision", "hookSpecificOutput", "reason", "stopReason", "suppressOutput", "systemMessage"}


class Broken(Exception):
    """The client would report an error of the hook, or ignore its output."""


def hooks(client: str, native: str) -> list[tuple[str, float]]:
    """Return the commands of an event, each with its timeout in seconds."""
    found: list[tuple[str, float]] = []
    for root in (os.path.expanduser("~"), os.getcwd()):
        for name in CONFIGURATIONS[client]:
            path = os.path.join(root, name)
            if not os.path.exists(path):
                continue
            with open(path, "rb") as file:
                settings: Any = tomllib.load(file) if path.endswith(".toml") else json.load(file)
            found += [
                (one["command"], one.get("timeout", 60) / (1000 if client == "gemini" else 1))
                for one in _entries(client, settings, native)
            ]
    # Identical commands run once.
    return list(dict(found).items())


def _entries(client: str, settings: Any, native: str) -> list[dict[str, Any]]:
    if client == "kimi":
        tables = settings.get("hooks", [])
        assert all(table.keys() <= {"event", "matcher", "command", "timeout", "fail_mode"} for table in tables)
        return [table for table in tables if table["event"] == native]
    groups = settings.get("hooks", {}).get(native, [])
    if client == "cursor":
        assert settings.get("version", 1) == 1
        return list(groups)
    return [one for group in groups for one in group["hooks"] if one["type"] == "command"]


def run(command: str, data: bytes, timeout: float, kill: float | None) -> tuple[int, bytes]:
    """Run one hook in a shell: its exit code and output. Killed: the code is negative."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    timer = threading.Timer(timeout if kill is None else kill, os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    try:
        out, _ = process.communicate(data)
    finally:
        timer.cancel()
    return process.returncode, out


def answer(client: str, native: str, code: int, out: bytes) -> tuple[str | None, str | None]:
    """Return what a hook adds to the context, and why the agent may not stop."""
    if code == 2:
        raise Broken(f"{native} is blocked")
    text = out.decode().strip()
    if code != 0 or not text:
        return None, None
    if native in OBSERVED.get(client, ()):
        raise Broken(f"{client} ignores what {native} prints: {text[:200]}")
    if not text.startswith("{"):
        if client in {"claude", "kimi"} and native in {"SessionStart", "UserPromptSubmit"}:
            return limited(text), None
        raise Broken(f"{native} printed no JSON: {text[:200]}")
    try:
        data = json.loads(text)
    except ValueError as error:
        raise Broken(f"{native} printed half of it: {error}") from None
    if client in STRICT and data.keys() - KNOWN:
        raise Broken(f"unknown fields: {data.keys() - KNOWN}")
    return _stopped(client, data) if native in {"Stop", "AfterAgent", "stop"} else (_added(client, native, data), None)


def _stopped(client: str, data: dict[str, Any]) -> tuple[str | None, str | None]:
    if client == "cursor":
        return None, data["followup_message"]
    if client == "kimi":
        specific = data["hookSpecificOutput"]
        assert specific["permissionDecision"] == "deny"
        return None, specific["permissionDecisionReason"]
    blocks = {"block", "deny"} if client == "gemini" else {"block"}
    if data["decision"] not in blocks or not data["reason"].strip():
        raise Broken(f"no reason to go on: {data}")
    return None, limited(data["reason"])


def _added(client: str, native: str, data: dict[str, Any]) -> str:
    if client == "cursor":
        return limited(data["additional_context"])
    specific = data["hookSpecificOutput"]
    if client in {"claude", "codex"} and specific.get("hookEventName") != native:
        raise Broken(f"the output is that of {specific.get('hookEventName')}, not of {native}")
    if client in STRICT and specific.keys() - {"hookEventName", "additionalContext"}:
        raise Broken(f"unknown fields: {specific.keys()}")
    return limited(specific["additionalContext"])


def limited(text: str) -> str:
    if len(text.encode()) > CONTEXT_LIMIT:
        raise Broken(f"{len(text.encode())} bytes are cut")
    return text


def main(client: str) -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        native = asked["event"]
        data = json.dumps({"hook_event_name": native, **asked["input"]}).encode()
        context: list[str] = []
        reasons: list[str] = []
        broken: list[str] = []
        killed = 0
        commands = hooks(client, native)
        for command, timeout in commands:
            code, out = run(command, data, timeout, asked.get("kill"))
            killed += code < 0
            try:
                added, reason = answer(client, native, code, out)
            except Broken as error:
                broken.append(str(error))
                continue
            context += [added] if added else []
            reasons += [reason] if reason else []
        reply = {"context": context, "stop": reasons, "broken": broken, "killed": killed, "hooks": len(commands)}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
