"""Coding agents that agentbus is installed into: their names, and their names for the events of ``agentbus hook``.

``agentbus setup`` writes a configuration that runs ``agentbus hook EVENT --client CLIENT``; the hook reads the client's
JSON and prints what that client takes. This table is all that both share. It imports nothing: the hook runs with every
tool.
"""

from __future__ import annotations

SESSION_START = "session-start"
PROMPT = "prompt"
BEFORE_TOOL = "before-tool"
AFTER_TOOL = "after-tool"
STOP = "stop"
SESSION_END = "session-end"
EVENTS = (SESSION_START, PROMPT, BEFORE_TOOL, AFTER_TOOL, STOP, SESSION_END)
"""The events of ``agentbus hook``."""

TITLES = {
    "claude": "Claude Code",
    "codex": "Codex CLI",
    "gemini": "Gemini CLI",
    "opencode": "OpenCode",
    "kimi": "Kimi Code CLI",
    "cursor": "Cursor",
}
"""The clients, each with its own name."""
CLIENTS = tuple(TITLES)

ALIASES = {
    "claude-code": "claude", "codex-cli": "codex", "gemini-cli": "gemini", "open-code": "opencode",
    "kimi-code": "kimi", "kimi-cli": "kimi", "cursor-agent": "cursor",
}  # fmt: skip
"""Other names of the clients."""

NATIVE_EVENTS: dict[str, dict[str, tuple[str, ...]]] = {
    # A failed tool call fires PostToolUseFailure in place of PostToolUse.
    "claude": {
        SESSION_START: ("SessionStart",),
        PROMPT: ("UserPromptSubmit",),
        BEFORE_TOOL: ("PreToolUse",),
        AFTER_TOOL: ("PostToolUse", "PostToolUseFailure"),
        STOP: ("Stop",),
        SESSION_END: ("SessionEnd",),
    },
    "codex": {
        SESSION_START: ("SessionStart",),
        PROMPT: ("UserPromptSubmit",),
        BEFORE_TOOL: ("PreToolUse",),
        AFTER_TOOL: ("PostToolUse",),
        STOP: ("Stop",),
        SESSION_END: ("SessionEnd",),
    },
    "gemini": {
        SESSION_START: ("SessionStart",),
        PROMPT: ("BeforeAgent",),
        BEFORE_TOOL: ("BeforeTool",),
        AFTER_TOOL: ("AfterTool",),
        STOP: ("AfterAgent",),
        SESSION_END: ("SessionEnd",),
    },
    # Its plugin sends these names; the events of version 2 have the same names there.
    "opencode": {
        SESSION_START: ("session.start",),
        PROMPT: ("chat.message",),
        BEFORE_TOOL: ("tool.execute.before",),
        AFTER_TOOL: ("tool.execute.after",),
        STOP: ("session.idle",),
        SESSION_END: ("session.deleted",),
    },
    # Its tool events only observe: what a hook prints reaches the model with the next prompt, or when it stops.
    "kimi": {
        SESSION_START: ("SessionStart",),
        PROMPT: ("UserPromptSubmit",),
        BEFORE_TOOL: ("PreToolUse",),
        AFTER_TOOL: ("PostToolUse", "PostToolUseFailure"),
        STOP: ("Stop",),
        SESSION_END: ("SessionEnd",),
    },
    "cursor": {
        SESSION_START: ("sessionStart",),
        PROMPT: ("beforeSubmitPrompt",),
        BEFORE_TOOL: ("preToolUse",),
        AFTER_TOOL: ("postToolUse", "postToolUseFailure"),
        STOP: ("stop",),
        SESSION_END: ("sessionEnd",),
    },
}
"""The client's own names of each event: ``hook_event_name`` in its JSON, and the keys of its configuration."""
