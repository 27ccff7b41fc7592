"""Where each client keeps its configuration, and in which form: one row of the table per client.

The forms are those of the clients' documentation; docs/coding-agents.md names the pages. ``{config}`` in a path is the
client's directory, ``{home}`` the home directory and ``{project}`` the directory of the project.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import msgspec

from agentbus.errors import InvalidInput

Scope = Literal["user", "project"]
USER: Scope = "user"
PROJECT: Scope = "project"

SHELL_COMMANDS = (
    "receive", "send", "reply", "ack", "nack", "progress", "busy", "heartbeat", "prime", "status",
)  # fmt: skip
"""Commands that an agent may run without asking. Not among them: those that delete, and ``run``, which runs any."""


class Hooks(msgspec.Struct, frozen=True):
    """Where hooks are written, and how."""

    user: str
    project: str | None
    form: Literal["groups", "list", "toml", "plugin"]
    """``groups``: {event: [{hooks: [hook]}]}; ``list``: {event: [hook]}; ``toml``: [[hooks]]; ``plugin``: code."""
    hook: dict[str, Any] = {}
    """Fields of each hook besides its command and its timeout."""
    timeout: int = 10
    """Seconds that a hook may take. It takes less than one."""
    end_timeout: int = 5
    """Seconds for the end of a session."""
    milliseconds: bool = False
    """True if the client counts milliseconds."""
    top: dict[str, Any] = {}
    """Fields that the file must have."""


class Server(msgspec.Struct, frozen=True):
    """Where the MCP server is written, and how."""

    user: str
    project: str
    path: tuple[str, ...] = ("mcpServers",)
    joined: bool = False
    """True if the command and its arguments are one list."""
    fields: dict[str, Any] = {}
    """Fields besides the command."""
    moved: str | None = None
    """A key below ``path`` that holds the servers in a later version of the format."""


class Layout(msgspec.Struct, frozen=True):
    """A client: its directories, the parts of its configuration, and its programs."""

    config: str
    """The user's directory of the client."""
    local: str
    """The client's directory in a project."""
    hooks: Hooks
    server: Server
    skills: tuple[str, str] = ("{config}/skills", "{config}/skills")
    """The directory of skills of the user, and of a project."""
    variable: tuple[str, str] | None = None
    """An environment variable and the directory that it moves."""
    allow: tuple[str, ...] = ()
    """The list of permissions in the file of the hooks, by its path."""
    programs: tuple[str, ...] = ()
    """Programs whose presence shows that the client is installed."""
    note: str | None = None
    """Advice for the user."""
    project_note: str | None = None
    """The same, for a project."""


LAYOUTS: dict[str, Layout] = {
    "claude": Layout(
        config="{home}/.claude",
        local="{project}/.claude",
        variable=("CLAUDE_CONFIG_DIR", "{value}"),
        hooks=Hooks("{config}/settings.json", "{config}/settings.json", "groups", {"type": "command"}),
        server=Server("{home}/.claude.json", "{project}/.mcp.json", fields={"type": "stdio"}),
        allow=("permissions", "allow"),
        programs=("claude",),
        project_note="Claude Code asks once whether to use the MCP server of the project",
    ),
    "codex": Layout(
        config="{home}/.codex",
        local="{project}/.codex",
        variable=("CODEX_HOME", "{value}"),
        # Longer than 3 seconds at the end of a session is a warning at every start.
        hooks=Hooks("{config}/hooks.json", "{config}/hooks.json", "groups", {"type": "command"}, end_timeout=3),
        server=Server(
            "{config}/config.toml", "{config}/config.toml", ("mcp_servers",),
            fields={"default_tools_approval_mode": "approve"},
        ),
        skills=("{home}/.agents/skills", "{project}/.agents/skills"),
        programs=("codex",),
        note="Codex runs new hooks only after you trust them: start codex, type /hooks",
        project_note="Codex reads .codex only in a project that you trust",
    ),
    "gemini": Layout(
        config="{home}/.gemini",
        local="{project}/.gemini",
        variable=("GEMINI_CLI_HOME", "{value}/.gemini"),
        hooks=Hooks(
            "{config}/settings.json", "{config}/settings.json", "groups", {"type": "command", "name": "agentbus"},
            milliseconds=True,
        ),
        server=Server("{config}/settings.json", "{config}/settings.json", fields={"trust": True}),
        programs=("gemini",),
        project_note="Gemini CLI reads .gemini only in a folder that you trust",
    ),
    "opencode": Layout(
        config="{home}/.config/opencode",
        local="{project}/.opencode",
        variable=("XDG_CONFIG_HOME", "{value}/opencode"),
        hooks=Hooks("{config}/plugins/agentbus.js", "{config}/plugins/agentbus.js", "plugin"),
        server=Server(
            "{config}/opencode.json", "{project}/opencode.json", ("mcp",), joined=True,
            fields={"type": "local"}, moved="servers",
        ),
        programs=("opencode",),
        note="OpenCode loads the plugin when it starts",
    ),
    "kimi": Layout(
        config="{home}/.kimi-code",
        local="{project}/.kimi-code",
        variable=("KIMI_CODE_HOME", "{value}"),
        hooks=Hooks("{config}/config.toml", None, "toml"),
        server=Server("{config}/mcp.json", "{config}/mcp.json"),
        programs=("kimi",),
        project_note="Kimi Code CLI has no hooks in a project: agentbus setup kimi --user writes them",
    ),
    "cursor": Layout(
        config="{home}/.cursor",
        local="{project}/.cursor",
        hooks=Hooks("{config}/hooks.json", "{config}/hooks.json", "list", top={"version": 1}),
        server=Server("{config}/mcp.json", "{config}/mcp.json"),
        programs=("cursor-agent", "cursor"),
        project_note="Cursor reads .cursor only in a workspace that you trust",
    ),
}  # fmt: skip


class Places(msgspec.Struct, frozen=True):
    """The directories of one client in one scope."""

    scope: Scope
    home: str
    project: str
    config: str

    def path(self, template: str) -> str:
        return template.format(home=self.home, project=self.project, config=self.config)


def places(client: str, scope: Scope) -> Places:
    """Return the directories of a client, as its environment variables move them."""
    layout = LAYOUTS[client]
    home = os.path.expanduser("~")
    project = project_root()
    if scope == PROJECT:
        return Places(scope, home, project, layout.local.format(project=project))
    config = layout.config.format(home=home)
    if layout.variable is not None and (value := os.environ.get(layout.variable[0])):
        config = os.path.abspath(layout.variable[1].format(value=value))
    return Places(scope, home, project, config)


def server_file(client: str, where: Places) -> str:
    """Return the file of the MCP server."""
    server = LAYOUTS[client].server
    path = where.path(server.user if where.scope == USER else server.project)
    if client == "claude" and where.scope == USER and os.environ.get("CLAUDE_CONFIG_DIR"):
        return f"{where.config}/.claude.json"
    if client == "opencode" and not os.path.lexists(path) and os.path.lexists(f"{path}c"):
        return f"{path}c"
    return path


def hooks_file(client: str, where: Places) -> str | None:
    """Return the file of the hooks, or None if the client has none in this scope."""
    hooks = LAYOUTS[client].hooks
    template = hooks.user if where.scope == USER else hooks.project
    return None if template is None else where.path(template)


def skill_file(client: str, where: Places) -> str:
    """Return the file of the skill."""
    user, project = LAYOUTS[client].skills
    return f"{where.path(user if where.scope == USER else project)}/agentbus/SKILL.md"


def project_root() -> str:
    """Return the directory of the project: the next one upwards with .git, or the current one."""
    here = os.path.realpath(os.getcwd())
    directory = here
    while not os.path.lexists(f"{directory}/.git"):
        above = os.path.dirname(directory)
        if above == directory:
            return here
        directory = above
    return directory


def require_project() -> None:
    """Refuse the home directory as a project: its files are those of the user."""
    if project_root() == os.path.realpath(os.path.expanduser("~")):
        raise HomeIsNoProject(path=project_root())


class HomeIsNoProject(InvalidInput):
    """The project would be the home directory, whose configuration is that of the user."""

    code = "setup_home"
    text = "{path} is the home directory, not a project"
    fix_text = "change to the directory of a project, or pass --user"
