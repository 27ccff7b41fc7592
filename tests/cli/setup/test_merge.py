"""Configuration that is there already: nothing of it is lost, reformatted or removed, and removal restores it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agentbus.cli.setup import json_text
from tests.cli.setup.conftest import Box

SETTINGS = """{
    // my settings, with four spaces
    "model": "opus", /* the large one */
    "hooks": {
        "PostToolUse": [
            {"matcher": "Edit", "hooks": [{"type": "command", "command": "prettier --write ."}]}, // keep it
        ],
        "Notification": [],
    },
    "permissions": {"allow": ["Bash(git diff:*)"], "deny": []}, // on one line
}
"""
CODEX = """# my configuration
model = "gpt-5"   # the default

[projects."/srv/app"]
trust_level = "trusted"

[mcp_servers.docs]
command = "docs-server"
"""
KIMI = """default_model = "k3"

[[hooks]]
event = "Stop"
command = "notify"

[[permission.rules]]
decision = "deny"
pattern = "Bash(rm*)\"""".rstrip()
TEXTS = {
    "comments": SETTINGS,
    "tabs": '{\n\t"model": "opus",\n\t"mcpServers": {\n\t\t"other": {\n\t\t\t"command": "x"\n\t\t}\n\t}\n}',
    "one line": '{"model":"opus","mcpServers":{"other":{"command":"x"}},"hooks":{}}',
    "crlf": '{\r\n  "model": "opus",\r\n  "hooks": {}\r\n}\r\n',
    "empty objects": '{"hooks": {"Stop": []}, "permissions": {"allow": []}, "mcpServers": {}}\n',
    "mark": '\ufeff{\n  "model": "opus"\n}\n',
    "empty": "",
    "blank": "\n\n",
    "comment only": "{\n  // nothing yet\n}\n",
    "escapes": '{"a\\u0022\\\\": "\\ud83d\\ude00 \\/ \\n", "n": -1.5e-7, "deep": [[[{"x": [1, 2, {}]}]]]}\n',
}
FILES = {
    "claude": (".claude/settings.json", ".claude.json"),
    "codex": (".codex/hooks.json",),
    "gemini": (".gemini/settings.json",),
    "opencode": (".config/opencode/opencode.json",),
    "kimi": (".kimi-code/mcp.json",),
    "cursor": (".cursor/hooks.json", ".cursor/mcp.json"),
}


def place(box: Box, name: str, text: str) -> Path:
    path = box.home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("client", FILES)
def test_every_form_of_text_is_extended_and_restored_to_the_byte(box: Box, client: str) -> None:
    # The forms of hooks differ in claude and cursor; the others are edited by the same code.
    some = (
        TEXTS if client in {"claude", "cursor"} else {kind: TEXTS[kind] for kind in ("comments", "one line", "empty")}
    )
    for kind, text in some.items():
        paths = [place(box, name, text) for name in FILES[client]]
        box.told("setup", client, "--user")
        for path in paths:
            now = path.read_bytes().decode()
            value = json_text.parse(now).value
            assert "agentbus" in now, kind
            assert value.get("model") == ("opus" if "opus" in text else None), kind
            # A comment stays at the end of its line.
            assert all(comment in now for comment in ("// keep it\n", "/* the large one */\n") if comment in text)
            assert ("\r\n" in now) == ("\r\n" in text)
            assert now.count("\n") == now.count("\r\n") or "\r" not in now
        there = box.files()
        assert box.told("setup", client, "--user")["action"] == "unchanged", kind
        assert box.files() == there
        box.told("setup", client, "--user", "--remove")
        assert [path.read_bytes().decode() for path in paths] == [text] * len(paths), kind
        assert not [name for name in box.files() if "agentbus" in name], kind


def test_a_text_on_one_line_stays_on_one_line(box: Box) -> None:
    path = place(box, ".claude/settings.json", TEXTS["one line"])
    box.told("setup", "claude", "--user")
    assert path.read_text().count("\n") == 0
    assert set(json.loads(path.read_text())) == {"model", "mcpServers", "hooks", "permissions"}


def test_what_the_user_adds_around_our_entries_stays(box: Box) -> None:
    path = place(box, ".claude/settings.json", SETTINGS)
    server = place(box, ".claude.json", '{\n  "numStartups": 3\n}\n')
    box.told("setup", "claude", "--user")
    text = path.read_text()
    # Into the group of our hook, before and after our rules, and beside our server.
    ours = '"command": "agentbus hook stop --client claude",'
    text = text.replace(ours, f'"async": false, // mine\n            {ours}')
    text = text.replace('"mcp__agentbus"', '"mcp__other", "mcp__agentbus"')
    text = text.replace('"Bash(agentbus status:*)"', '"Bash(agentbus status:*)", "Bash(ls:*)"')
    path.write_text(json_text.append(text, ("hooks", "Stop", 0, "hooks"), {"type": "command", "command": "say done"}))
    server.write_text(json_text.set_value(server.read_text(), ("mcpServers", "other"), {"command": "x"}))
    changed = path.read_text()
    assert box.told("setup", "claude", "--user")["action"] == "unchanged"
    assert path.read_text() == changed
    box.told("setup", "claude", "--user", "--remove")
    value = json_text.parse(path.read_text()).value
    before = json_text.parse(SETTINGS).value
    assert value["hooks"].pop("Stop") == [{"hooks": [{"type": "command", "command": "say done"}]}]
    assert value["permissions"].pop("allow") == ["Bash(git diff:*)", "mcp__other", "Bash(ls:*)"]
    before["permissions"].pop("allow")
    assert value == before
    assert "// keep it" in path.read_text()
    assert json.loads(server.read_text()) == {"numStartups": 3, "mcpServers": {"other": {"command": "x"}}}
    # The text before the installation is still there: this file is no longer equal to it.
    assert path.with_name("settings.json.agentbus-backup").read_text() == SETTINGS


def test_an_entry_of_the_user_with_our_name_is_kept_or_refused(box: Box) -> None:
    path = place(
        box, ".claude.json", '{"mcpServers": {"agentbus": {"command": "agentbus", "args": ["mcp"], "env": {"A": "1"}}}}'
    )
    box.told("setup", "claude", "--user")
    entry = json.loads(path.read_text())["mcpServers"]["agentbus"]
    assert entry == {"command": "agentbus", "args": ["mcp"], "env": {"A": "1"}, "type": "stdio"}
    box.told("setup", "claude", "--user", "--remove")
    other = '{"mcpServers": {"agentbus": {"command": "another-bus"}}}'
    path.write_text(other)
    before = box.files()
    error = box.refused("setup", "claude", "--user", code=1)
    assert error["code"] == "setup_refused"
    assert "another server named agentbus" in error["message"]
    assert "agentbus setup claude --user --print" in error["fix"]
    # No other file was written either.
    assert box.files() == before
    box.told("setup", "claude", "--user", "--remove")
    assert path.read_text() == other


def test_a_hook_of_an_earlier_version_is_changed_where_it_is(box: Box) -> None:
    path_of_old, interpreter = "/old/bin/agentbus", "'/a b/python' -P -m agentbus"
    options = "--max-stops 1"
    stop = {"type": "command", "command": f"{path_of_old} hook stop --client claude {options}", "timeout": 60}
    again = {"type": "command", "command": f"{interpreter} hook stop --client claude"}
    gone = {"type": "command", "command": "agentbus hook compact --client claude"}
    groups = {"Stop": [{"matcher": "x", "hooks": [stop]}, {"hooks": [again]}], "PreCompact": [{"hooks": [gone]}]}
    old = {"hooks": groups}
    path = place(box, ".claude/settings.json", json.dumps(old, indent=1))
    box.told("setup", "claude", "--user")
    hooks = json.loads(path.read_text())["hooks"]
    # The user's timeout and options stay; there is one hook per event, and none of an event that is no longer used.
    wanted = {"type": "command", "command": f"agentbus hook stop --client claude {options}", "timeout": 60}
    assert hooks["Stop"] == [{"matcher": "x", "hooks": [wanted]}]
    assert "PreCompact" not in hooks


def test_hooks_that_prime_taught_are_reported(box: Box) -> None:
    text = json.dumps({"hooks": {"SessionEnd": [{"hooks": [{"type": "command", "command": "agentbus stop 'ended'"}]}]}})
    place(box, ".claude/settings.json", text)
    notes = box.told("setup", "claude", "--user")["notes"]
    assert any("has other hooks that call agentbus" in note for note in notes)


@pytest.mark.parametrize(("client", "text"), [("codex", CODEX), ("kimi", KIMI), ("codex", CODEX.replace("\n", "\r\n"))])
def test_a_toml_file_keeps_comments_and_order(box: Box, client: str, text: str) -> None:
    path = place(box, f".{'kimi-code' if client == 'kimi' else 'codex'}/config.toml", text)
    box.told("setup", client, "--user")
    now = path.read_bytes().decode()
    assert now.startswith(text)
    value = tomllib.loads(now.replace("\r\n", "\n"))
    if client == "codex":
        assert value["mcp_servers"]["agentbus"]["args"] == ["mcp"]
        assert value["mcp_servers"]["docs"] == {"command": "docs-server"}
    else:
        assert [hook["event"] for hook in value["hooks"]][:2] == ["Stop", "SessionStart"]
        assert len(value["permission"]["rules"]) == 2
    assert box.told("setup", client, "--user")["action"] == "unchanged"
    # As Codex itself appends a table: before the comment at the end of the file.
    added = '[projects."/new"]\ntrust_level = "trusted"\n'
    path.write_bytes(now.replace("# agentbus end", f"{added}# agentbus end").encode())
    assert box.told("setup", client, "--user")["action"] == "unchanged"
    box.told("setup", client, "--user", "--remove")
    left = tomllib.loads(path.read_bytes().decode().replace("\r\n", "\n"))
    assert left["projects"].pop("/new") == {"trust_level": "trusted"}
    expected: dict[str, Any] = {"projects": {}, **tomllib.loads(text.replace("\r\n", "\n"))}
    assert left == expected
    path.write_bytes(text.encode())
    box.told("setup", client, "--user")
    box.told("setup", client, "--user", "--remove")
    assert path.read_bytes().decode() == text


@pytest.mark.parametrize(
    "text",
    [
        'mcp_servers = { docs = { command = "x" } }\n',
        '[mcp_servers.agentbus]\ncommand = "another-bus"\n',
        "mcp_servers = 3\n",
        "not toml [\n",
    ],
)
def test_a_toml_file_that_cannot_be_extended_is_left_alone(box: Box, text: str) -> None:
    place(box, ".codex/config.toml", text)
    before = box.files()
    error = box.refused("setup", "codex", "--user", code=1)
    assert error["code"] == "setup_refused"
    assert "agentbus setup codex --user --print" in error["fix"]
    assert box.files() == before


def test_a_mark_within_a_string_is_no_block(box: Box) -> None:
    text = 'note = """\n# agentbus begin: no\n[x]\n# agentbus end\n"""\n'
    path = place(box, ".codex/config.toml", text)
    box.run("setup", "codex", "--user")
    assert tomllib.loads(path.read_text())["note"] == tomllib.loads(text)["note"]


def test_opencode_uses_the_file_and_the_form_that_are_there(box: Box) -> None:
    text = (
        '{\n  // version 2\n  "mcp": {\n    "servers": {\n      "a": {"type": "remote", "url": "u"},\n    },\n  },\n}\n'
    )
    path = place(box, ".config/opencode/opencode.jsonc", text)
    box.told("setup", "opencode", "--user")
    assert set(json_text.parse(path.read_text()).value["mcp"]["servers"]) == {"a", "agentbus"}
    assert not (path.parent / "opencode.json").exists()
    box.told("setup", "opencode", "--user", "--remove")
    assert path.read_text() == text


def test_a_file_to_which_opencode_has_added_its_schema_is_deleted(box: Box) -> None:
    box.told("setup", "opencode")
    path = box.project / "opencode.json"
    path.write_text(path.read_text().replace("{", '{\n  "$schema": "https://opencode.ai/config.json",', 1))
    box.told("setup", "opencode", "--remove")
    assert not path.exists()


def test_files_of_the_user_with_our_names_are_put_back(box: Box) -> None:
    skill = place(box, "work/.claude/skills/agentbus/SKILL.md", "---\nname: agentbus\n---\nmine\n")
    report = box.told("setup", "claude")
    backup = skill.with_name("SKILL.md.agentbus-backup")
    assert [one["backup"] for one in report["files"]] == [None, None, str(backup)]
    assert "mine" not in skill.read_text()
    box.told("setup", "claude", "--remove")
    assert skill.read_text() == "---\nname: agentbus\n---\nmine\n"
    assert not backup.exists()


def test_a_skill_that_was_edited_is_not_lost(box: Box) -> None:
    box.told("setup", "claude")
    skill = box.project / ".claude/skills/agentbus/SKILL.md"
    skill.write_text(skill.read_text().replace("Report progress", "Report daily"))
    assert box.told("setup", "claude", "--remove")["notes"]
    assert not skill.exists()
    assert "Report daily" in skill.with_name("SKILL.md.agentbus-backup").read_text()


def test_a_backup_is_never_overwritten(box: Box) -> None:
    path = place(box, ".codex/hooks.json", '{"a": 1}')
    box.told("setup", "codex", "--user")
    backup = path.with_name("hooks.json.agentbus-backup")
    assert backup.read_text() == '{"a": 1}'
    box.told("setup", "codex", "--user")
    path.write_text(json_text.set_value(path.read_text(), ("b",), 2))
    box.told("setup", "codex", "--user", "--remove")
    assert json.loads(path.read_text()) == {"a": 1, "b": 2}
    box.told("setup", "codex", "--user")
    assert backup.read_text() == '{"a": 1}'
    assert json.loads(path.with_name("hooks.json.agentbus-backup-2").read_text()) == {"a": 1, "b": 2}
