"""The parts of an installation: hooks, MCP server, permissions, skill and plugin, each as an edit of one file.

A part adds what is missing and changes what is its own; ``remove`` removes what is its own, also if another version
wrote it. What belongs to agentbus is recognized by its command line, not by a record of what was written: the user may
have moved it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from agentbus.cli.clients import EVENTS, NATIVE_EVENTS, SESSION_END
from agentbus.cli.setup import json_text, toml_text
from agentbus.cli.setup.layouts import LAYOUTS, SHELL_COMMANDS, Hooks, Server

NAME = "agentbus"
"""The name of the MCP server and of the skill."""
_ALLOWED = re.compile(r"Bash\(agentbus [a-z]+:\*\)|mcp__agentbus")


class Foreign(ValueError):
    """The file holds something of another form, or of another program, where the part would be."""


class Part(ABC):
    """A part of an installation."""

    kind: str
    """``hooks``, ``mcp``, ``permissions``, ``skill`` or ``plugin``."""

    @abstractmethod
    def install(self, text: str | None) -> str:
        """Return the text with the part."""

    @abstractmethod
    def remove(self, text: str, original: str | None) -> str | None:
        """Return the text without the part. ``original`` is the text before the installation, if a backup has it."""

    @abstractmethod
    def is_installed(self, text: str) -> bool:
        """Return whether the text has the part, in whatever version."""

    @abstractmethod
    def is_blank(self, text: str) -> bool:
        """Return whether the text says nothing, so that a file of agentbus alone can be deleted."""

    @abstractmethod
    def means(self, text: str) -> Any:
        """Return what the text says, to compare two texts."""

    @abstractmethod
    def without(self, meaning: Any) -> Any:
        """Return what the rest of the text says."""


def hook_words(command: Sequence[str], client: str, event: str, url: str | None) -> list[str]:
    """Return the command line of a hook."""
    return [*command, "hook", event, "--client", client, *(("--url", url) if url else ())]


def is_agentbus(words: Sequence[str], subcommand: str) -> bool:
    """Return whether a command line calls this command of agentbus."""
    if words and os.path.basename(words[0]) == "agentbus":
        rest = words[1:]
    elif list(words[1:4]) == ["-P", "-m", "agentbus"]:
        rest = words[4:]
    elif list(words[1:3]) == ["-m", "agentbus"]:
        rest = words[3:]
    else:
        return False
    return list(rest[:1]) == [subcommand]


def is_our_hook(command: Any) -> bool:
    """Return whether setup wrote the command of a hook.

    >>> is_our_hook("agentbus hook stop --client claude"), is_our_hook("agentbus heartbeat || true")
    (True, False)
    """
    if not isinstance(command, str) or "agentbus" not in command:
        return False
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    return is_agentbus(words, "hook") and "--client" in words


def own_options(command: str) -> list[str]:
    """Return the options that a user has added to a hook.

    >>> own_options("agentbus hook after-tool --client claude --urgent 5 --url ~/bus")
    ['--urgent', '5']
    """
    words = shlex.split(command)
    rest = words[words.index("hook") + 2 :]
    found: list[str] = []
    while rest:
        word = rest.pop(0)
        if word in {"--client", "--url"}:
            del rest[:1]
        elif not word.startswith(("--client=", "--url=")):
            found.append(word)
    return found


def is_our_server(entry: Any) -> bool:
    """Return whether an MCP server is agentbus."""
    if not isinstance(entry, dict):
        return False
    command, arguments = entry.get("command"), entry.get("args", [])
    words = command if isinstance(command, list) else [command, *(arguments if isinstance(arguments, list) else [])]
    return all(isinstance(word, str) for word in words) and is_agentbus(words, "mcp")


def _value_at(value: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        value = value[key]
    return value


class _JSONPart(Part):
    def means(self, text: str) -> Any:
        return json_text.parse(text).value if text.strip("\ufeff \t\r\n") else {}

    def is_blank(self, text: str) -> bool:
        return bool(self.means(text) == {})

    def _object(self, text: str | None, *path: str) -> tuple[str, dict[str, Any]]:
        """Return the text, and the object below a path. An empty file becomes an empty object."""
        if text is None or not text.strip("\ufeff \t\r\n"):
            text = "{}\n"
        node = json_text.parse(text)
        value: Any = node.value
        for depth in range(len(path) + 1):
            found = node.get(path[:depth])
            if found is None:
                return text, {}
            value = found.value
            if not isinstance(value, dict):
                raise Foreign(f"{'.'.join(path[:depth]) or 'the file'} is not an object")
        return text, value


def _prune(text: str, path: Sequence[str], original: Any) -> str:
    """Remove containers that are empty, innermost first, unless they were there before."""
    for depth in range(len(path), 0, -1):
        node = json_text.parse(text).get(path[:depth])
        if node is None:
            continue
        if node.value or _has(original, path[:depth]):
            return text
        text = json_text.remove(text, path[:depth])
    return text


def _has(value: Any, path: Sequence[str]) -> bool:
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    return True


def _pruned(value: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """Return an object without the empty containers on a path."""
    if not path or path[0] not in value:
        return value
    inner = value[path[0]]
    inner = _pruned(inner, path[1:]) if isinstance(inner, dict) else inner
    rest = {key: one for key, one in value.items() if key != path[0]}
    return rest if inner in ({}, []) else {**rest, path[0]: inner}


class JSONHooks(_JSONPart):
    """Hooks in a JSON file: groups of hooks per event, or hooks per event."""

    kind = "hooks"

    def __init__(self, client: str, command: Sequence[str], url: str | None) -> None:
        self._form: Hooks = LAYOUTS[client].hooks
        self._grouped = self._form.form == "groups"
        self._wanted = {
            native: self._hook(hook_words(command, client, event, url), event)
            for event in EVENTS
            for native in NATIVE_EVENTS[client][event]
        }

    def _hook(self, words: list[str], event: str) -> dict[str, Any]:
        seconds = self._form.end_timeout if event == SESSION_END else self._form.timeout
        timeout = seconds * 1000 if self._form.milliseconds else seconds
        return {**self._form.hook, "command": shlex.join(words), "timeout": timeout}

    def install(self, text: str | None) -> str:
        text, _ = self._object(text)
        for key, value in self._form.top.items():
            text = text if key in self._object(text)[1] else json_text.set_value(text, (key,), value)
        _, events = self._object(text, "hooks")
        for native in events.keys() - self._wanted.keys():
            text = self._remove_from(text, native, None)
        for native, hook in self._wanted.items():
            found = self._ours(text, native)
            if not found:
                text = json_text.append(text, ("hooks", native), {"hooks": [hook]} if self._grouped else hook)
                continue
            for extra in reversed(found[1:]):
                text = self._remove_hook(text, extra)
            before = _value_at(self.means(text), (*found[0], "command"))
            command = " ".join([hook["command"], shlex.join(own_options(before))]).rstrip()
            text = json_text.set_value(text, (*found[0], "command"), command)
        return text

    def remove(self, text: str, original: str | None) -> str:
        _, events = self._object(text, "hooks")
        before = None if original is None else self.means(original)
        for native in events:
            text = self._remove_from(text, native, before)
        for key, value in self._form.top.items():
            if before is not None and key not in before and self.means(text).get(key) == value:
                text = json_text.remove(text, (key,))
        return text

    def is_installed(self, text: str) -> bool:
        _, events = self._object(text, "hooks")
        return any(self._ours(text, native) for native in events)

    def is_blank(self, text: str) -> bool:
        return self.means(text) in ({}, self._form.top)

    def without(self, meaning: Any) -> Any:
        rest = {key: value for key, value in meaning.items() if self._form.top.get(key, ...) != value}
        if not isinstance(rest.get("hooks"), dict):
            return rest
        events = {native: self._others(entries) for native, entries in rest["hooks"].items()}
        return _pruned({**rest, "hooks": {native: found for native, found in events.items() if found}}, ("hooks",))

    def _others(self, entries: Any) -> Any:
        if not isinstance(entries, list):
            return entries
        if not self._grouped:
            return [one for one in entries if not (isinstance(one, dict) and is_our_hook(one.get("command")))]
        kept = []
        for group in entries:
            hooks = group.get("hooks") if isinstance(group, dict) else None
            if not isinstance(hooks, list):
                kept.append(group)
                continue
            others = [one for one in hooks if not (isinstance(one, dict) and is_our_hook(one.get("command")))]
            if others or not hooks:
                kept.append({**group, "hooks": others})
        return kept

    def _ours(self, text: str, native: str) -> list[tuple[str | int, ...]]:
        """Return the paths of our hooks of an event."""
        _, events = self._object(text, "hooks")
        entries = events.get(native, [])
        if not isinstance(entries, list):
            raise Foreign(f"hooks.{native} is not a list")
        found: list[tuple[str | int, ...]] = []
        for i, entry in enumerate(entries):
            hooks = entry.get("hooks") if self._grouped and isinstance(entry, dict) else None
            if self._grouped and isinstance(hooks, list):
                found += [("hooks", native, i, "hooks", j) for j, one in enumerate(hooks)
                          if isinstance(one, dict) and is_our_hook(one.get("command"))]  # fmt: skip
            elif not self._grouped and isinstance(entry, dict) and is_our_hook(entry.get("command")):
                found.append(("hooks", native, i))
        return found

    def _remove_from(self, text: str, native: str, original: Any) -> str:
        found = self._ours(text, native)
        for path in reversed(found):
            text = self._remove_hook(text, path)
        return _prune(text, ("hooks", native), original) if found else text

    def _remove_hook(self, text: str, path: tuple[str | int, ...]) -> str:
        text = json_text.remove(text, path)
        if self._grouped:
            group = json_text.parse(text).get(path[:-1])
            text = text if group is None or group.items else json_text.remove(text, path[:-2])
        return text


class JSONServer(_JSONPart):
    """The MCP server in a JSON file."""

    kind = "mcp"

    def __init__(self, client: str, command: Sequence[str], url: str | None) -> None:
        self._form: Server = LAYOUTS[client].server
        words = [*command, "mcp", *(("--url", url) if url else ())]
        line: dict[str, Any] = {"command": words} if self._form.joined else {"command": words[0], "args": words[1:]}
        self._entry = {**self._form.fields, **line}

    def _path(self, meaning: Any) -> tuple[str, ...]:
        path = self._form.path
        if self._form.moved is not None and _has(meaning, (*path, self._form.moved)):
            # A server of that name would have a command.
            inner = meaning[path[0]][self._form.moved]
            if isinstance(inner, dict) and "command" not in inner and "url" not in inner:
                return (*path, self._form.moved)
        return path

    def install(self, text: str | None) -> str:
        text, meaning = self._object(text)
        path = self._path(meaning)
        entry = self._object(text, *path)[1].get(NAME)
        if entry is None:
            return json_text.set_value(text, (*path, NAME), self._entry)
        if not is_our_server(entry):
            raise Foreign(f"{'.'.join(path)} has another server named {NAME}")
        for key, value in self._entry.items():
            text = json_text.set_value(text, (*path, NAME, key), value)
        return text

    def remove(self, text: str, original: str | None) -> str:
        if not self.is_installed(text):
            return text
        path = self._path(self.means(text))
        before = None if original is None else self.means(original)
        return _prune(json_text.remove(text, (*path, NAME)), path, before)

    def is_blank(self, text: str) -> bool:
        # OpenCode adds $schema to each file that it reads.
        return bool(self.means(text).keys() <= {"$schema"})

    def is_installed(self, text: str) -> bool:
        path = self._path(self.means(text))
        return is_our_server(self._object(text, *path)[1].get(NAME))

    def without(self, meaning: Any) -> Any:
        path = self._path(meaning)
        if not _has(meaning, (*path, NAME)):
            return _pruned(meaning, path)
        inner: Any = meaning
        for key in path:
            inner = inner[key]
        if is_our_server(inner[NAME]):
            rest: Any = {key: value for key, value in inner.items() if key != NAME}
            for depth in range(len(path) - 1, -1, -1):
                outer: Any = meaning
                for key in path[:depth]:
                    outer = outer[key]
                rest = {**outer, path[depth]: rest}
            meaning = rest
        return _pruned(meaning, path)


class JSONAllow(_JSONPart):
    """Rules that allow the tools and harmless commands of agentbus, in a JSON file."""

    kind = "permissions"

    def __init__(self, client: str) -> None:
        self._path = LAYOUTS[client].allow
        self._rules = [f"mcp__{NAME}", *(f"Bash(agentbus {name}:*)" for name in SHELL_COMMANDS)]

    def _list(self, text: str) -> list[Any]:
        _, owner = self._object(text, *self._path[:-1])
        found = owner.get(self._path[-1], [])
        if not isinstance(found, list):
            raise Foreign(f"{'.'.join(self._path)} is not a list")
        return found

    def install(self, text: str | None) -> str:
        text, _ = self._object(text)
        for rule in self._rules:
            if rule not in self._list(text):
                text = json_text.append(text, self._path, rule)
        return text

    def remove(self, text: str, original: str | None) -> str:
        before = None if original is None else self.means(original)
        earlier = self._list(original) if original is not None and original.strip() else []
        found = [index for index, rule in enumerate(self._list(text)) if self._is_ours(rule) and rule not in earlier]
        for index in reversed(found):
            text = json_text.remove(text, (*self._path, index))
        return _prune(text, self._path, before) if found else text

    def is_installed(self, text: str) -> bool:
        return any(self._is_ours(rule) for rule in self._list(text))

    def without(self, meaning: Any) -> Any:
        if not _has(meaning, self._path):
            return _pruned(meaning, self._path)
        outer = meaning[self._path[0]]
        rules = outer[self._path[1]]
        kept = [rule for rule in rules if not self._is_ours(rule)] if isinstance(rules, list) else rules
        return _pruned({**meaning, self._path[0]: {**outer, self._path[1]: kept}}, self._path)

    @staticmethod
    def _is_ours(rule: Any) -> bool:
        return isinstance(rule, str) and _ALLOWED.fullmatch(rule) is not None


class TOMLBlock(Part):
    """Tables in a block of a TOML file: the MCP server of Codex, or the hooks and permissions of Kimi."""

    def __init__(self, kind: str, client: str, block: str) -> None:
        self.kind = kind
        self._comment = f"written by agentbus setup {client}, removed with --remove"
        self._block = block

    def install(self, text: str | None) -> str:
        text = text or ""
        meaning = toml_text.load(text)
        wanted = toml_text.load(self._block)
        if _ours(meaning) == wanted:
            return text
        base = toml_text.without_block(text, _is_ours)
        there = _ours(toml_text.load(base))
        if there:
            if there == wanted:
                return text
            raise Foreign("has entries of agentbus outside of its block: remove them first")
        servers = toml_text.load(base).get("mcp_servers", {})
        if isinstance(servers, dict) and NAME in servers:
            raise Foreign(f"mcp_servers has another server named {NAME}")
        return toml_text.with_block(base, self._block, self._comment)

    def remove(self, text: str, original: str | None) -> str:
        return toml_text.without_block(text, _is_ours)

    def is_installed(self, text: str) -> bool:
        return bool(_ours(toml_text.load(text)))

    def is_blank(self, text: str) -> bool:
        return not text.strip("\ufeff \t\r\n")

    def means(self, text: str) -> Any:
        return toml_text.load(text)

    def without(self, meaning: Any) -> Any:
        ours = _ours(meaning)
        rest = dict(meaning)
        if "hooks" in ours:
            rest["hooks"] = [one for one in meaning["hooks"] if one not in ours["hooks"]]
        if "permission" in ours:
            rules = [one for one in meaning["permission"]["rules"] if one not in ours["permission"]["rules"]]
            rest["permission"] = {**meaning["permission"], "rules": rules}
        if "mcp_servers" in ours:
            rest["mcp_servers"] = {key: one for key, one in meaning["mcp_servers"].items() if key != NAME}
        for path in (("hooks",), ("permission", "rules"), ("mcp_servers",)):
            rest = _pruned(rest, path)
        return rest


def _ours(meaning: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of agentbus in a TOML document."""
    found: dict[str, Any] = {}
    hooks = meaning.get("hooks", [])
    if isinstance(hooks, list) and (ours := [one for one in hooks if is_our_hook(one.get("command"))]):
        found["hooks"] = ours
    permission = meaning.get("permission", {})
    rules = permission.get("rules", []) if isinstance(permission, dict) else []
    if isinstance(rules, list) and (ours := [one for one in rules if one.get("pattern") == f"mcp__{NAME}__*"]):
        found["permission"] = {"rules": ours}
    servers = meaning.get("mcp_servers", {})
    if isinstance(servers, dict) and is_our_server(servers.get(NAME)):
        found["mcp_servers"] = {NAME: servers[NAME]}
    return found


def _is_ours(table: dict[str, Any]) -> bool:
    """Return whether a table of the block is of agentbus."""
    return bool(table) and _ours(table) == table


def codex_server(command: Sequence[str], url: str | None) -> str:
    """Return the MCP server in TOML."""
    words = [*command, "mcp", *(("--url", url) if url else ())]
    lines = [
        f"[mcp_servers.{NAME}]",
        f"command = {toml_text.quoted(words[0])}",
        f"args = {toml_text.quoted(words[1:])}",
    ]
    fields = LAYOUTS["codex"].server.fields
    return "\n".join([*lines, *(f"{key} = {toml_text.quoted(value)}" for key, value in fields.items())]) + "\n"


def kimi_hooks(command: Sequence[str], url: str | None) -> str:
    """Return the hooks and the permissions in TOML."""
    form = LAYOUTS["kimi"].hooks
    tables = []
    for event in EVENTS:
        line = toml_text.quoted(shlex.join(hook_words(command, "kimi", event, url)))
        seconds = form.end_timeout if event == SESSION_END else form.timeout
        tables += [
            f"[[hooks]]\nevent = {toml_text.quoted(native)}\ncommand = {line}\ntimeout = {seconds}\n"
            for native in NATIVE_EVENTS["kimi"][event]
        ]
    tables.append(f'[[permission.rules]]\ndecision = "allow"\npattern = "mcp__{NAME}__*"\n')
    return "\n".join(tables)


_MARK = re.compile(r"agentbus setup ([0-9a-f]{16})")


class OwnFile(Part):
    """A file of agentbus alone. It carries the hash of its text, so that changes of the user are recognized."""

    def __init__(self, kind: str, text: str, comment: tuple[str, str]) -> None:
        self.kind = kind
        before, after = comment
        self._text = f"{text}{before}agentbus setup {_hash(text)}{after}\n"

    def install(self, text: str | None) -> str:
        return self._text

    def remove(self, text: str, original: str | None) -> str | None:
        return original if self.is_installed(text) else text

    def is_installed(self, text: str) -> bool:
        return _MARK.search(text) is not None

    def is_edited(self, text: str) -> bool:
        """Return whether the user wrote or changed the text."""
        lines = text.splitlines(keepends=True)
        found = _MARK.search(lines[-1]) if lines else None
        return found is None or found[1] != _hash("".join(lines[:-1]))

    def is_blank(self, text: str) -> bool:
        return False

    def means(self, text: str) -> Any:
        return text

    def without(self, meaning: Any) -> Any:
        return None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
