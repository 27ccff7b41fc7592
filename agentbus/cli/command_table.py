"""The table of commands: the module and the purpose of each. Finding a command imports nothing else."""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("status", "create a bus here"),
    "status": ("status", "show what failed, what waits, and what there is"),
    "register": ("agents", "register a visiting agent"),
    "expect": ("agents", "announce an agent that will register later"),
    "heartbeat": ("agents", "send a heartbeat"),
    "progress": ("agents", "report progress"),
    "busy": ("agents", "announce a period of silence"),
    "complete": ("agents", "mark this agent completed"),
    "fail": ("agents", "mark this agent failed"),
    "stop": ("agents", "mark this agent stopped"),
    "agents": ("agents", "list, show, find, delete and clear agents"),
    "send": ("messages", "send a message to an agent, a pool, a topic or a task"),
    "receive": ("messages", "receive messages under a lease"),
    "ack": ("messages", "acknowledge messages"),
    "nack": ("messages", "release messages for redelivery"),
    "reject": ("messages", "dead-letter messages"),
    "reply": ("messages", "reply to a message and acknowledge it"),
    "request": ("messages", "send a message and wait for its reply"),
    "steer": ("delivery", "direct a running agent, as a person"),
    "watch": ("delivery", "print messages of an agent as they arrive, without receiving them"),
    "wait": ("messages", "wait until there are messages, or for an agent"),
    "declare": ("messages", "create pools and topics"),
    "messages": ("messages", "list, show, requeue and purge messages"),
    "holds": ("holds", "list, release and discard messages that wait for a person"),
    "state": ("state", "get, set, increment, delete, list and watch state"),
    "checkpoint": ("checkpoints", "create, list, show, verify, restore and prune checkpoints"),
    "document": ("documents", "save, show and export the documents of a session"),
    "histories": ("histories", "list, show and delete what agent frameworks store"),
    "session": ("sessions", "start, show, pause, end and recover sessions"),
    "task": ("tasks", "start, show, approve, signal, take and control tasks"),
    "worker": ("worker", "run durable tasks with the workflows of a Python module"),
    "recovery": ("recovery", "summarize interrupted work, and clear agents"),
    "events": ("events", "print the audit log"),
    "types": ("types", "list, show and add types of agents and messages"),
    "monitor": ("monitor", "detect dead agents and interrupted sessions"),
    "metrics": ("metrics", "print metrics of the bus for Prometheus"),
    "notifications": ("notifications", "list, check and test the webhooks and commands that notify you"),
    "serve": ("serve", "serve the HTTP API and the dashboard"),
    "token": ("serve", "create, list and revoke tokens of HTTP clients"),
    "cleanup": ("maintenance", "archive and delete old data"),
    "quotas": ("maintenance", "show and set limits on queues, rates and size"),
    "import": ("maintenance", "import JSON files, a database or an archive"),
    "export": ("maintenance", "write the bus or a session to a file"),
    "copy": ("maintenance", "copy a bus to another directory or server"),
    "backup": ("maintenance", "create, list and restore backups"),
    "doctor": ("maintenance", "check the bus for problems"),
    "trust": ("trust", "trust a server or a directory that a repository names"),
    "setup": ("setup", "install agentbus into a coding agent, or remove it"),
    "prime": ("prime", "print instructions for an LLM agent"),
    "mcp": ("mcp", "serve the bus to an MCP client"),
    "hook": ("hook", "show a coding agent its messages; its hooks call it"),
    "run": ("run", "run a command as a resident agent"),
    "demo": ("demo", "run a 20-second demo"),
    "completion": ("completion", "print the completion script for a shell"),
}
"""Module and purpose by name, in the order of ``agentbus --help``."""

LOGGED = frozenset({"serve", "monitor", "worker", "run"})
"""The commands that run for long and write logs."""

DEFAULTS = {
    "token": "list", "agents": "list", "messages": "list", "types": "list", "task": "list", "backup": "create",
    "holds": "list", "histories": "list", "notifications": "list",
}  # fmt: skip
"""The default member of a family of commands."""

ALIASES = {
    "agent": "agents", "message": "messages", "type": "types", "event": "events", "sessions": "session",
    "checkpoints": "checkpoint", "documents": "document", "backups": "backup", "tasks": "task",
    "quota": "quotas", "hold": "holds", "history": "histories", "tokens": "token",
    "notification": "notifications",
}  # fmt: skip
"""Singular and plural of the families."""

SYNONYMS = {
    "ps": "agents list", "list": "agents list", "ls": "agents list", "workers": "agents list", "top": "status --watch",
    "log": "events", "logs": "events", "audit": "events", "kill": "stop", "quit": "stop",
    "exit": "stop", "done": "complete", "finish": "complete", "purge": "messages purge", "queue": "messages list",
    "inbox": "receive --peek", "peek": "receive --peek", "recv": "receive", "read": "receive", "get": "state get",
    "set": "state set", "increment": "state increment", "incr": "state increment", "join": "register",
    "publish": "send", "config": "status --settings",
    "settings": "status --settings", "info": "status",
    "recover": "session recover", "resume": "session recover", "start": "session start",
    "restore": "checkpoint restore", "create": "init", "new": "init", "gc": "cleanup", "prune": "cleanup",
    "announce": "expect", "pool": "declare", "topic": "declare",
    "approve": "task approve", "approvals": "task approvals", "redo": "task redo", "halt": "task halt",
    "restart": "task restart", "signal": "task signal", "query": "task query", "ready": "task ready",
    "take": "task take", "claim": "task take", "close": "task finish", "todo": "task ready",
    "workflow": "task list", "workflows": "task stats", "work": "worker",
    "install": "setup", "uninstall": "setup --remove", "integrate": "setup",
    "check": "doctor", "follow": "watch", "exec": "run", "spawn": "run",
    "web": "serve", "dashboard": "serve", "ui": "serve", "http": "serve", "api": "serve",
    "notify": "notifications test", "webhook": "notifications list", "webhooks": "notifications list",
    "migrate": "copy", "move": "copy", "mv": "copy", "cp": "copy", "clone": "copy",
}  # fmt: skip
"""Names of other tools. They are only suggested, not run: some of the commands cannot be undone."""
