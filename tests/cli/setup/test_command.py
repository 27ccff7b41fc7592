"""``agentbus setup``: the list, the scopes, the directories that variables move, and the command that is written."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import TIMEOUT
from tests.cli.setup.conftest import Box
from tests.cli.terminals import on_terminal


def test_the_list_shows_clients_that_are_there_and_what_is_installed(box: Box) -> None:
    assert box.told("setup") == []
    assert box.say("setup") == ""
    (box.home / ".codex").mkdir()
    (box.programs / "gemini").write_text("#!/bin/sh\n")
    (box.programs / "gemini").chmod(0o755)
    box.told("setup", "claude", "--project")
    (box.project / ".mcp.json").unlink()
    rows = {(row["client"], row["scope"]): row for row in box.told("setup")}
    assert set(rows) == {("codex", "user"), ("gemini", "user"), ("gemini", "project"), ("claude", "project")}
    claude = rows["claude", "project"]
    assert (claude["status"], claude["parts"], claude["missing"]) == (
        "partial",
        ["hooks", "permissions", "skill"],
        ["mcp"],
    )
    assert claude["files"] == [
        str(box.project / name) for name in (".claude/settings.json", ".claude/skills/agentbus/SKILL.md")
    ]
    assert rows["codex", "user"]["status"] == "absent"
    assert [row["client"] for row in box.told("setup", "--project")] == ["claude", "gemini"]
    assert "codex\tuser\ttrue\tabsent\t[]\t" in box.say("setup")
    code, shown = on_terminal(box, "setup")
    assert code == 0
    assert "partial" in shown


def test_the_command_line_is_checked(box: Box) -> None:
    for words in (("emacs",), ("--remove",), ("--dry-run",), ("claude", "--user", "--project"), ("claude", "codex")):
        assert box.refused("setup", *words, code=2)["code"] == "usage"
    assert box.told("setup", "claude-code", "--dry-run")["client"] == "claude"
    assert box.run("install").err.endswith("did you mean agentbus setup?\n")
    assert 'setup) [[ -z "$member" ]] && found="claude codex gemini' in box.say("completion", "bash")
    outcome = box.run("prime", "--for", "claude-code")
    assert "agentbus setup claude" in outcome.err
    box.directory = box.home
    assert box.refused("setup", "claude", code=2)["code"] == "setup_home"
    assert list(box.home.iterdir()) == [box.project]


def test_what_is_written_can_be_printed_instead(box: Box) -> None:
    before = box.files()
    printed = {one["path"]: one["text"] for one in box.told("setup", "codex", "--user", "--print")}
    plain = box.say("setup", "codex", "--user", "--print")
    assert box.files() == before
    assert all(f"=== {path}\n{text.splitlines()[0]}" in plain for path, text in printed.items())
    assert box.refused("setup", "codex", "--print", "--remove", code=2)["code"] == "usage"
    box.told("setup", "codex", "--user")
    assert printed == {str(box.home / name): content.decode() for name, content in box.files().items()}


def test_a_project_is_the_directory_with_git(box: Box) -> None:
    box.directory = box.project / "src" / "deep"
    box.directory.mkdir(parents=True)
    box.told("setup", "codex")
    assert (box.project / ".codex" / "hooks.json").is_file()


@pytest.mark.parametrize(
    ("client", "variable", "files"),
    [
        ("claude", "CLAUDE_CONFIG_DIR", ["settings.json", ".claude.json", "skills/agentbus/SKILL.md"]),
        ("codex", "CODEX_HOME", ["hooks.json", "config.toml"]),
        ("gemini", "GEMINI_CLI_HOME", [".gemini/settings.json", ".gemini/skills/agentbus/SKILL.md"]),
        ("opencode", "XDG_CONFIG_HOME", ["opencode/plugins/agentbus.js", "opencode/opencode.json"]),
        ("kimi", "KIMI_CODE_HOME", ["config.toml", "mcp.json", "skills/agentbus/SKILL.md"]),
    ],
)
def test_variables_of_the_client_move_its_files(box: Box, client: str, variable: str, files: list[str]) -> None:
    moved = box.home / "moved dir"
    box.environment[variable] = str(moved)
    box.told("setup", client, "--user")
    assert all((moved / name).is_file() for name in files)
    assert set(box.home.iterdir()) <= {box.project, moved, box.home / ".agents"}
    box.told("setup", client, "--user", "--remove")
    assert not [path for path in moved.rglob("*") if path.is_file()]


def test_the_command_works_wherever_it_is_installed(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name on the path, by its path from a virtual environment, and with the interpreter otherwise."""
    environment = box.home / "my venv"
    own = environment / "bin" / "agentbus"
    own.parent.mkdir(parents=True)
    own.write_text(f'#!/bin/sh\nprintf "%s\\n" "$0" "$@" > {shlex.quote(str(box.home / "called"))}\n')
    own.chmod(0o755)
    path = box.environment["PATH"]
    box.environment |= {"VIRTUAL_ENV": str(environment), "PATH": f"{own.parent}:{path}"}
    assert box.told("setup", "claude", "--dry-run")["command"] == ["agentbus"]
    assert box.told("setup", "claude", "--user")["command"] == [str(own)]
    assert _called(box) == [str(own), "hook", "stop", "--client", "claude"]
    servers = json.loads((box.home / ".claude.json").read_text())["mcpServers"]
    assert servers["agentbus"] == {"type": "stdio", "command": str(own), "args": ["mcp"]}
    # Without the environment, the same entries are changed where they are.
    python = own.with_name("python3")
    own.rename(python)
    monkeypatch.setattr(sys, "executable", str(python))
    box.environment["PATH"] = "/usr/bin:/bin"
    report = box.told("setup", "claude", "--user")
    assert report["command"] == [str(python), "-P", "-m", "agentbus"]
    assert _called(box) == [str(python), "-P", "-m", "agentbus", "hook", "stop", "--client", "claude"]
    assert len(json.loads((box.home / ".claude" / "settings.json").read_text())["hooks"]["Stop"]) == 1
    report = box.told("setup", "claude", "--project", "--dry-run")
    assert any("not on the path" in note for note in report["notes"])
    box.told("setup", "codex", "--user")
    server = tomllib.loads((box.home / ".codex" / "config.toml").read_text())["mcp_servers"]["agentbus"]
    assert [server["command"], *server["args"]] == [str(python), "-P", "-m", "agentbus", "mcp"]


def _called(box: Box) -> list[str]:
    """Run the hook of the settings as the client does. Return the words that it was called with."""
    hooks = json.loads((box.home / ".claude" / "settings.json").read_text())["hooks"]
    command = hooks["Stop"][0]["hooks"][0]["command"]
    subprocess.run(["sh", "-c", command], check=True, timeout=TIMEOUT, cwd=box.project)
    return (box.home / "called").read_text().splitlines()


def test_a_bus_that_is_named_is_written_and_a_password_only_for_the_user(box: Box) -> None:
    box.told("setup", "claude", "--user", "--url", "some dir/.agentbus")
    url = str(box.project / "some dir/.agentbus")
    hooks = json.loads((box.home / ".claude" / "settings.json").read_text())["hooks"]
    words = shlex.split(hooks["Stop"][0]["hooks"][0]["command"])
    assert words == ["agentbus", "hook", "stop", "--client", "claude", "--url", url]
    assert json.loads((box.home / ".claude.json").read_text())["mcpServers"]["agentbus"]["args"] == [
        "mcp",
        "--url",
        url,
    ]
    # Without --url, the bus of the directory is used again; the environment is not written.
    box.environment["AGENTBUS_URL"] = "postgresql://u:pw@h/d"
    box.told("setup", "claude", "--user")
    assert "--url" not in (box.home / ".claude" / "settings.json").read_text()
    for secret in ("postgresql://u:pw@h/d", "postgresql://h/d?password=pw"):
        before = box.files()
        for client in ("claude", "codex", "opencode"):
            error = box.refused("setup", client, "--project", "--url", secret, code=2)
            assert error["code"] == "setup_secret"
        assert box.files() == before
    outcome = box.run("setup", "codex", "--user", "--url", "postgresql://u:pw@h/d")
    assert outcome.code == 0
    assert "u:…@h" in outcome.out
    assert ":pw@" not in outcome.out
    assert "postgresql://u:pw@h/d" in (box.home / ".codex" / "config.toml").read_text()
    box.told("setup", "claude", "--project", "--url", "postgresql://u@h/d")


NODE = """
import plugin from %s
const calls = []
const waiting = []
const client = { session: { promptAsync: async (request) => { calls.push(request) } } }
const one = await plugin.server({ client, directory: process.cwd() })
const parts = [{ type: "text", text: "do it" }]
await one["chat.message"]({ sessionID: "s1" }, { parts })
await one["tool.execute.before"]({ sessionID: "s1", tool: "bash" })
const output = { output: "ran", title: "", metadata: {} }
await one["tool.execute.after"]({ sessionID: "s1", tool: "bash" }, output)
await one.event({ event: { type: "session.created", properties: { info: { id: "child", parentID: "s1" } } } })
const quiet = { output: "ran" }
await one["tool.execute.after"]({ sessionID: "child", tool: "bash" }, quiet)
await one.event({ event: { type: "session.idle", properties: { sessionID: "s1" } } })
await one.event({ event: { type: "session.deleted", properties: { info: { id: "s1" } } } })

const hooks = {}
const events = ["session.execution.succeeded", "session.deleted"].map((type) => ({ type, data: { sessionID: "s2" } }))
let finished
const done = new Promise((resolve) => (finished = resolve))
async function* stream() {
  await new Promise((go) => waiting.push(go))
  yield* events
  finished()
}
const ctx = {
  session: {
    get: async () => ({ location: { directory: process.cwd() } }),
    hook: async (name, run) => { hooks[name] = run },
    synthetic: async (request) => { calls.push(request) },
  },
  tool: { hook: async (name, run) => { hooks[name] = run } },
  event: { subscribe: () => stream() },
}
await plugin.setup(ctx)
const prompt = { text: "and this" }
await hooks.prompt({ sessionID: "s2", prompt })
await hooks["execute.before"]({ sessionID: "s2", tool: "shell" })
const result = { content: [{ type: "text", text: "ok" }] }
await hooks["execute.after"]({ sessionID: "s2", tool: "shell", result, status: "completed" })
waiting.forEach((go) => go())
await done
process.env.REFUSE = "1"
const refused = await hooks["execute.before"]({ sessionID: "s2", tool: "shell" }).catch((error) => error.message)
process.env.BROKEN = "1"
const broken = { output: "ran" }
await one["tool.execute.after"]({ sessionID: "s3", tool: "bash" }, broken)
console.log(JSON.stringify({ id: plugin.id, parts, output, quiet, calls, prompt, result, refused, broken }))
"""
FAKE = """#!/bin/sh
cat >> "$HOME/input"; echo >> "$HOME/input"
test -z "$BROKEN" || { printf '{"additionalContext": '; exit 0; }
echo "$*" >> "$HOME/calls"
case "$2" in
    stop) printf '{"decision": "block", "reason": "mail waits"}' ;;
    before-tool) test -z "$REFUSE" || printf '{"decision": "block", "reason": "reserved"}' ;;
    session-end) ;;
    *) printf '{"additionalContext": "from %s"}' "$2" ;;
esac
"""


def test_the_plugin_of_opencode_runs_the_hooks_of_both_versions(box: Box, tmp_path: Path) -> None:
    """A fake host of each version calls the plugin as its documentation says; a fake agentbus answers."""
    import shutil

    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    (box.programs / "agentbus").write_text(FAKE)
    box.told("setup", "opencode")
    plugin = tmp_path / "agentbus.mjs"
    plugin.write_text((box.project / ".opencode/plugins/agentbus.js").read_text())
    program = tmp_path / "host.mjs"
    program.write_text(NODE % json.dumps(str(plugin)))
    done = subprocess.run(
        [node, program], env=box.environment, cwd=box.project, capture_output=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    seen = json.loads(done.stdout)
    assert seen["id"] == "agentbus"
    assert seen["parts"][0]["text"] == "do it\n\nfrom session-start\n\nfrom prompt"
    assert seen["output"]["output"] == "ran\n\nfrom after-tool"
    assert seen["quiet"] == seen["broken"] == {"output": "ran"}
    assert seen["prompt"]["text"] == "and this\n\nfrom session-start\n\nfrom prompt"
    assert seen["result"]["content"][1] == {"type": "text", "text": "from after-tool"}
    assert seen["refused"] == "reserved"
    assert seen["calls"] == [
        {"path": {"id": "s1"}, "body": {"parts": [{"type": "text", "text": "mail waits"}]}},
        {"sessionID": "s2", "text": "mail waits"},
    ]
    words = ["session-start", "prompt", "before-tool", "after-tool", "stop", "session-end"]
    expected = [f"hook {word} --client opencode" for word in words]
    assert (box.home / "calls").read_text().splitlines() == [*expected, *expected, expected[2]]
    first = json.loads((box.home / "input").read_text().splitlines()[1])
    assert first == {"hook_event_name": "chat.message", "session_id": "s1", "prompt": "do it", "cwd": str(box.project)}
