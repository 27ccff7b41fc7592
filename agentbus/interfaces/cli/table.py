"""The table of commands: which module each is in, and what it is for. Nothing else is imported to find one."""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("place", "make a bus here"),
    "status": ("place", "how the bus stands: agents, queues, sessions, tasks, settings"),
    "register": ("agents", "join the bus as a visiting agent"),
    "heartbeat": ("agents", "show that you are alive"),
    "progress": ("agents", "say how far you are"),
    "busy": ("agents", "say that you will be silent for a while"),
    "complete": ("agents", "end your life: the work is done"),
    "fail": ("agents", "end your life: the work cannot be done"),
    "stop": ("agents", "end your life though the work is not done"),
    "agents": ("registry", "list, show, find, delete and clear agents"),
    "send": ("messages", "send a message to an agent, a pool or a topic"),
    "receive": ("messages", "take messages from your mailboxes"),
    "ack": ("messages", "acknowledge messages: they are done"),
    "nack": ("messages", "give messages back, to be tried again"),
    "reject": ("messages", "make dead letters of messages"),
    "reply": ("messages", "answer a message, and acknowledge it"),
    "request": ("messages", "send a message and wait for its reply"),
    "wait": ("messages", "wait until there is something for you"),
    "messages": ("mailroom", "list, show, requeue and purge messages"),
    "state": ("state", "get, set, delete, list and watch entries of state"),
    "checkpoint": ("checkpoints", "create, list, show, verify, restore and prune checkpoints"),
    "document": ("documents", "save, show and export the documents of a session"),
    "session": ("sessions", "start, look at, pause, end and recover sessions"),
    "task": ("tasks", "start, look at, approve and control durable tasks"),
    "worker": ("working", "run durable tasks: the workflows of a Python module"),
    "recovery": ("recovery", "what was cut off, and setting agents aside"),
    "events": ("trail", "the audit trail: who changed what, when"),
    "types": ("vocabulary", "the types of agents and messages"),
    "monitor": ("monitoring", "watch over the bus: who died, what was interrupted"),
    "cleanup": ("upkeep", "archive what is old enough, and let it go"),
    "quotas": ("upkeep", "how much may wait, how fast, how large: show and set"),
    "import": ("transfer", "bring in what you have: JSON files, a database, an archive"),
    "export": ("transfer", "write the bus, or a session, to a file that import reads"),
    "copy": ("copying", "copy a whole bus to another place: a file, a server"),
    "backup": ("upkeep", "create, list and restore backups"),
    "doctor": ("upkeep", "look whether everything is in order"),
    "trust": ("trust", "accept a server or a directory that a repository names"),
    "prime": ("priming", "what an LLM agent has to know of the bus"),
    "run": ("run", "run a command as a resident agent"),
    "demo": ("demo", "the story in twenty seconds, with real processes"),
    "completion": ("completion", "completion for your shell"),
}
"""By name: the module, and what ``agentbus --help`` says of it. In this order."""

DEFAULTS = {"agents": "list", "messages": "list", "types": "list", "task": "list", "backup": "create"}
"""What a family of commands does when it is not said."""

ALIASES = {
    "agent": "agents", "message": "messages", "type": "types", "event": "events", "sessions": "session",
    "checkpoints": "checkpoint", "documents": "document", "backups": "backup", "tasks": "task",
    "quota": "quotas",
}  # fmt: skip
"""Nobody remembers which families are named in the plural."""

SYNONYMS = {
    "ps": "agents list", "list": "agents list", "ls": "agents list", "workers": "agents list", "top": "status --watch",
    "log": "events", "logs": "events", "history": "events", "audit": "events", "kill": "stop", "quit": "stop",
    "exit": "stop", "done": "complete", "finish": "complete", "purge": "messages purge", "queue": "messages list",
    "inbox": "receive --peek", "peek": "receive --peek", "recv": "receive", "read": "receive", "get": "state get",
    "set": "state set", "join": "register", "publish": "send", "config": "status", "info": "status",
    "recover": "session recover", "resume": "session recover", "start": "session start",
    "restore": "checkpoint restore", "create": "init", "new": "init", "gc": "cleanup", "prune": "cleanup",
    "approve": "task approve", "approvals": "task approvals", "redo": "task redo", "halt": "task halt",
    "restart": "task restart", "workflow": "task list", "workflows": "task stats", "work": "worker",
    "check": "doctor", "watch": "monitor", "exec": "run", "spawn": "run",
    "migrate": "copy", "move": "copy", "mv": "copy", "cp": "copy", "clone": "copy",
}  # fmt: skip
"""What others call it: only named, not done, since some of it cannot be taken back."""
