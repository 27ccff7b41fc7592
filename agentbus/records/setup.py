"""Records of the installation into coding agents."""

from __future__ import annotations

import msgspec


class SetupStatus(msgspec.Struct, frozen=True):
    """The installation of agentbus in one client and scope, as ``agentbus setup --json`` prints it.

    >>> SetupStatus("claude", "user", True, "partial", ["mcp"], ["hooks"], ["/home/ada/.claude.json"]).status
    'partial'
    """

    client: str
    """``claude``, ``codex``, ``gemini``, ``opencode``, ``kimi`` or ``cursor``."""
    scope: str
    """``user`` or ``project``."""
    detected: bool
    """True if the client is installed: its program is found, or its directory exists."""
    status: str
    """``installed``, ``partial`` or ``absent``."""
    parts: list[str]
    """The parts that are installed: ``hooks``, ``mcp``, ``permissions``, ``skill``, ``plugin``."""
    missing: list[str]
    """The parts that are not installed."""
    files: list[str]
    """The files of the installation."""


class SetupFile(msgspec.Struct, frozen=True):
    """A file that an installation or its removal changes.

    >>> SetupFile("/home/ada/.codex/hooks.json", "created", ["hooks"]).backup is None
    True
    """

    path: str
    action: str
    """``created``, ``changed``, ``deleted`` or ``unchanged``."""
    parts: list[str]
    """The parts that the file holds."""
    backup: str | None = None
    """The copy of the file from before the installation."""
    diff: str = ""
    """The change as a unified diff. Values of keys that name secrets are left out."""


class SetupReport(msgspec.Struct, frozen=True):
    """The changes that ``agentbus setup CLIENT`` has made, or with ``--dry-run`` would make.

    >>> SetupReport("codex", "user", "installed", False, ["agentbus"], [], []).action
    'installed'
    """

    client: str
    scope: str
    action: str
    """``installed``, ``removed`` or ``unchanged``."""
    dry_run: bool
    command: list[str]
    """The command that hooks and MCP server run."""
    files: list[SetupFile]
    notes: list[str]
    """Advice for the user."""
