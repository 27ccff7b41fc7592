"""Install agentbus into a client, remove it, and show where it is installed."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from difflib import unified_diff
from typing import Any

from agentbus.cli.clients import CLIENTS, TITLES
from agentbus.cli.setup import files, json_text, layouts, parts, toml_text
from agentbus.cli.setup.files import SetupRefused, Snapshot
from agentbus.cli.setup.layouts import LAYOUTS, PROJECT, USER, Places, Scope
from agentbus.cli.setup.parts import Foreign, OwnFile, Part
from agentbus.records.setup import SetupFile, SetupReport, SetupStatus

_TEXTS = f"{os.path.dirname(os.path.dirname(__file__))}/commands/texts"
_SECRET = re.compile(
    r'("[^"]*(?:key|token|secret|password|credential|auth)[^"]*"\s*:\s*)("(?:[^"\\]|\\.)+"?|[\d.]+)', re.I
)
_SECRET_TOML = re.compile(r"(^.?\s*[\w.-]*(?:key|token|secret|password|credential|auth)[\w.-]*\s*=\s*)\S.*", re.I)
_PASSWORD = re.compile(r"(://[^:/?#\s\"']*:)[^@/\s\"']+@")
_HUNK = re.compile(r"^@@ -(\d+)((?:,\d+)?) \+(\d+)")
_CONTEXT = 2
_MAX_LINE = 300
"""Characters of a line of a diff that are shown: some clients write their whole configuration on one line."""
_NATIVE_WORDS = re.compile(r"\bagentbus (?:heartbeat|receive|register|stop|prime)\b")


class Change:
    """The parts of one file of a client."""

    def __init__(self, client: str, path: str, found: list[Part], where: Places) -> None:
        self.client = client
        self.path = path
        self.parts = found
        self.where = where
        self.backup: str | None = None
        self.notes: list[str] = []

    @property
    def _within(self) -> str | None:
        return self.where.project if self.where.scope == PROJECT else None

    def read(self) -> Snapshot:
        return files.read(self.path, within=self._within)

    def run(self, *, remove: bool, dry_run: bool) -> SetupFile:
        """Make the change, or only compute it."""
        self.notes = []

        def edit(found: Snapshot) -> str | None:
            after = self.removed(found) if remove else self.installed(found)
            if after != found.text:
                files.require_writable(found)
                if not dry_run and not remove:
                    self._back_up(found)
            return after

        if dry_run:
            before = self.read()
            after = edit(before)
        elif remove and self.read().text is None:
            # There is nothing to remove; a change would create the file.
            before, after = self.read(), None
        else:
            before, after = files.change(self.path, edit, within=self._within, private=self.where.scope == USER)
            if remove and after != before.text:
                self._clean_up(before, after)
        return SetupFile(
            self.path, _action(before.text, after), [one.kind for one in self.parts], self.backup,
            difference(self.path, before.text, after),
        )  # fmt: skip

    def installed(self, found: Snapshot) -> str:
        """Return the text of the file with all parts."""
        try:
            text = self.parts[0].install(found.text)
            for one in self.parts[1:]:
                text = one.install(text)
            if found.text is not None:
                self._check(found.text, text)
        except (json_text.NotJSON, toml_text.NotTOML, Foreign) as error:
            raise self._refused(error) from None
        return text

    def removed(self, found: Snapshot) -> str | None:
        """Return the text of the file without the parts; None if nothing is left of it."""
        if found.text is None:
            return None
        text: str | None = found.text
        original = self._original(found)
        try:
            if not any(one.is_installed(found.text) for one in self.parts):
                return found.text
            for one in self.parts:
                text = None if text is None else one.remove(text, original)
            if text is None or isinstance(self.parts[0], OwnFile):
                return text
            self._check(found.text, text)
            if original is not None:
                same = self.parts[0].means(text) == self.parts[0].means(original)
                return original if same else text
            return None if all(one.is_blank(text) for one in self.parts) else text
        except (json_text.NotJSON, toml_text.NotTOML, Foreign) as error:
            raise self._refused(error) from None

    def is_installed(self, part: Part) -> bool:
        text = self.read().text
        try:
            return text is not None and part.is_installed(text)
        except (json_text.NotJSON, toml_text.NotTOML, Foreign):
            return False

    def _check(self, before: str, after: str) -> None:
        """Make sure that the edit left everything else as it was."""
        rest = [self.parts[0].means(text) for text in (before, after)]
        for one in self.parts:
            if isinstance(one, OwnFile):
                return
            rest = [one.without(meaning) for meaning in rest]
        if rest[0] != rest[1]:  # pragma: no cover - a fault of the editor
            raise Foreign("the edit would change other entries")

    def _original(self, found: Snapshot) -> str | None:
        """Return the text before the installation, if a backup has it."""
        for path in reversed(files.backups(found)):
            # A repository could bring a link, whose target would be copied into it.
            text = None if os.path.islink(path) else files.read(path).text
            try:
                if text is not None and not any(one.is_installed(text) for one in self.parts):
                    return text
            except (json_text.NotJSON, toml_text.NotTOML, Foreign):
                continue
        return None

    def _back_up(self, found: Snapshot) -> None:
        """Copy a file that is changed for the first time, or that the user has changed where it is ours alone."""
        text = found.text
        if text is None:
            return
        own = next((one for one in self.parts if isinstance(one, OwnFile)), None)
        if own.is_edited(text) if own is not None else not any(one.is_installed(text) for one in self.parts):
            self.backup = files.back_up(found)

    def _clean_up(self, before: Snapshot, after: str | None) -> None:
        """Delete the backup that equals the file again, and the directories that are empty now."""
        copies = files.backups(before)
        if after is not None and copies and files.read(copies[-1]).text == after:
            files.delete_quietly(copies[-1])
        own = self.parts[0]
        if after is None and isinstance(own, OwnFile) and before.text is not None and own.is_edited(before.text):
            self.backup = files.back_up(before)
            self.notes.append(f"{self.path} was changed after its installation: a copy is in {self.backup}")
        if after is None:
            # The directory of the client stays: it shows that the client is there.
            inside = before.path.startswith(f"{self.where.config}/")
            root = (
                self.where.project if self.where.scope == PROJECT else self.where.config if inside else self.where.home
            )
            files.remove_empty_folders(before.real, until=os.path.realpath(root))

    def _refused(self, error: ValueError) -> SetupRefused:
        kind = {json_text.NotJSON: "is not JSON: ", toml_text.NotTOML: "cannot be extended: "}.get(type(error), "")
        words = f"{kind}{error}" if kind else f"is not changed: {error}"
        command = f"agentbus setup {self.client} --{self.where.scope} --print"
        return SetupRefused(path=self.path, reason=words, advice=f"repair it, or copy by hand what {command} prints")

    def fresh(self) -> str:
        """Return the text of a file that has these parts and nothing else."""
        return self.installed(Snapshot(self.path, self.path, None))


def changes(client: str, scope: Scope, command: Sequence[str], url: str | None = None) -> list[Change]:
    """Return the files of an installation, with their parts."""
    where = layouts.places(client, scope)
    layout = LAYOUTS[client]
    found: dict[str, list[Part]] = {}
    hooks = layouts.hooks_file(client, where)
    if hooks is not None:
        found[hooks] = _hook_parts(client, command, url)
        if layout.allow:
            found[hooks].append(parts.JSONAllow(client))
    server = layouts.server_file(client, where)
    is_toml = server.endswith(".toml")
    found.setdefault(server, []).append(
        parts.TOMLBlock("mcp", client, parts.codex_server(command, url)) if is_toml
        else parts.JSONServer(client, command, url)
    )  # fmt: skip
    found[layouts.skill_file(client, where)] = [OwnFile("skill", f"{_text('skill.md')}\n", ("<!-- ", " -->"))]
    return [Change(client, path, here, where) for path, here in found.items()]


def _hook_parts(client: str, command: Sequence[str], url: str | None) -> list[Part]:
    form = LAYOUTS[client].hooks.form
    if form == "plugin":
        return [OwnFile("plugin", _plugin(command, url), ("// ", ""))]
    if form == "toml":
        return [parts.TOMLBlock("hooks", client, parts.kimi_hooks(command, url))]
    return [parts.JSONHooks(client, command, url)]


def _plugin(command: Sequence[str], url: str | None) -> str:
    import json

    text = _text("opencode.js")
    options = ["--url", url] if url else []
    text = text.replace('/* command */ ["agentbus"]', json.dumps(list(command)))
    return text.replace("/* options */ []", json.dumps(options))


def _text(name: str) -> str:
    with open(f"{_TEXTS}/{name}", encoding="utf-8") as file:
        return file.read()


def program(scope: Scope) -> list[str]:
    """Return the command that starts agentbus from a client.

    By name if it is on the path, and not only because a virtual environment is active here: the client may be started
    without it. In a project by name as well: others share its files. Otherwise this interpreter, by its absolute path.
    """
    found = shutil.which("agentbus")
    environment = os.environ.get("VIRTUAL_ENV")
    if found is None:
        # -P: it runs in directories of others, and must import nothing from there.
        return [sys.executable, "-P", "-m", "agentbus"]
    found = os.path.abspath(found)
    if scope == USER and environment and found.startswith(f"{os.path.abspath(environment)}/"):
        return [found]
    return ["agentbus"]


def run(client: str, scope: Scope, *, remove: bool, dry_run: bool, url: str | None = None) -> SetupReport:
    """Install agentbus into a client, or remove it."""
    if scope == PROJECT:
        layouts.require_project()
    command = program(scope)
    todo = changes(client, scope, command, url)
    # All are computed before the first is made: a file that is refused leaves the others as they are.
    for one in todo:
        one.run(remove=remove, dry_run=True)
    done = [one.run(remove=remove, dry_run=dry_run) for one in todo]
    acted = any(one.action != "unchanged" for one in done)
    notes = _notes(client, scope, command) if acted and not remove else []
    notes += [note for one in todo for note in one.notes]
    if not remove:
        notes += [note for one in todo for note in _other_hooks(one)]
    action = "unchanged" if not acted else "removed" if remove else "installed"
    return SetupReport(client, scope, action, dry_run, command, done, notes)


def statuses(scopes: Sequence[Scope] = (USER, PROJECT)) -> list[SetupStatus]:
    """Return where agentbus is installed: every client, in both scopes."""
    return [status(client, scope) for client in CLIENTS for scope in scopes]


def status(client: str, scope: Scope) -> SetupStatus:
    """Return how far agentbus is installed in a client."""
    where = layouts.places(client, scope)
    present: list[str] = []
    missing: list[str] = []
    paths: list[str] = []
    for one in changes(client, scope, program(scope)):
        here = [part.kind for part in one.parts if _safely_installed(one, part)]
        present += here
        missing += [part.kind for part in one.parts if part.kind not in here]
        paths += [one.path] if here else []
    detected = any(shutil.which(name) for name in LAYOUTS[client].programs) or os.path.isdir(where.config)
    word = "absent" if not present else "partial" if missing else "installed"
    return SetupStatus(client, scope, detected, word, present, missing, paths)


def _safely_installed(change: Change, part: Part) -> bool:
    try:
        return change.is_installed(part)
    except SetupRefused:
        return False


def _notes(client: str, scope: Scope, command: Sequence[str]) -> list[str]:
    layout = LAYOUTS[client]
    found = [layout.note, layout.project_note if scope == PROJECT else None]
    if command[0] != "agentbus" and scope == PROJECT:
        found.append(
            f"agentbus is not on the path: {command[0]} is written, which others who share the project do not have"
        )
    if not any(shutil.which(name) for name in layout.programs):
        found.append(f"{TITLES[client]} was not found on the path")
    return [note for note in found if note is not None]


def _other_hooks(change: Change) -> list[str]:
    """Return a note if hooks from ``agentbus prime --for`` are there as well."""
    text = change.read().text
    kinds = {part.kind for part in change.parts}
    if text is None or "hooks" not in kinds or not _NATIVE_WORDS.search(text):
        return []
    hooks = parts.JSONHooks("claude", ["agentbus"], None)
    try:
        rest: Any = hooks.without(hooks.means(text)).get("hooks", {})
    except (ValueError, AttributeError):
        return []
    if not _NATIVE_WORDS.search(str(rest)):
        return []
    return [f"{change.path} has other hooks that call agentbus: remove them, these replace them"]


def difference(path: str, before: str | None, after: str | None) -> str:
    """Return a change as a unified diff, without values that are secrets."""
    if before == after:
        return ""
    names = ("/dev/null" if before is None else path, "/dev/null" if after is None else path)
    old, new = (before or "").splitlines(), (after or "").splitlines()
    # Only the part that differs is compared: a file of a client can have a million lines.
    first = _common(old, new)
    last = _common(old[first:][::-1], new[first:][::-1])
    start = max(first - _CONTEXT, 0)
    end = max(last - _CONTEXT, 0)
    lines = unified_diff(old[start : len(old) - end], new[start : len(new) - end], *names, n=_CONTEXT, lineterm="")
    return "\n".join(_shown(_HUNK.sub(lambda found: _moved(found, start), line)) for line in lines)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of lines that both start with."""
    pairs = zip(one, other, strict=False)
    return next((index for index, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))


def _moved(found: re.Match[str], lines: int) -> str:
    return f"@@ -{int(found[1]) + lines}{found[2]} +{int(found[3]) + lines}"


def _shown(line: str) -> str:
    length = len(line)
    line = line[: 4 * _MAX_LINE]
    line = _PASSWORD.sub(r"\1…@", _SECRET_TOML.sub(r"\1…", _SECRET.sub(r'\1"…"', line)))
    return line if length <= _MAX_LINE else f"{line[:_MAX_LINE]}… ({length} characters)"


def _action(before: str | None, after: str | None) -> str:
    if before == after:
        return "unchanged"
    return "created" if before is None else "deleted" if after is None else "changed"
