"""The file of a user's notifiers: what it may say, who may write it, and that no error quotes a secret."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from agentbus.core.notification_settings import Webhook, load, parse, parse_url, secret_key, wanted_kinds
from agentbus.errors import InvalidSettings
from agentbus.operations.notifications import KINDS
from tests.support.cases import each
from tests.support.receiver import SECRET, UserSettings, user

__all__ = ["user"]

GOOD = f'[webhook.ops]\nurl = "https://hooks.example.org/s3cret"\nsecret = "{SECRET}"\nbuses = ["*"]\n'
COMMAND = '[command.desk]\ncommand = ["/bin/true", "s3cret"]\nbuses = ["~/project"]\n'


def refused(text: str) -> str:
    with pytest.raises(InvalidSettings) as found:
        parse(text, "FILE", KINDS)
    shown = f"{found.value} {found.value.facts} {found.value.fix}"
    assert "s3cret" not in shown, shown
    assert SECRET.removeprefix("whsec_") not in shown, shown
    assert found.value.fix
    return str(found.value)


def test_a_valid_file_is_read() -> None:
    found = parse(f'owner = "ada"\n{GOOD}{COMMAND}', "FILE", KINDS)
    assert (found.owner, list(found.notifiers)) == ("ada", ["ops", "desk"])
    assert "s3cret" not in f"{found!r}{found}"
    everything = wanted_kinds(found.notifiers["ops"], KINDS)
    assert everything == KINDS.keys() - {"agent_recovered"}
    some = parse(f'{GOOD}events = ["agent_failed", "agent_suspected"]\nseverity = "error"\n', "FILE", KINDS)
    assert wanted_kinds(some.notifiers["ops"], KINDS) == {"agent_failed"}


@each("text, words", [
    (GOOD + 'timeout = s3cret"', "at line 5"),
    (GOOD + "redirects = 3", "unknown field `redirects`"),
    (GOOD + 'timeout = "s3cret"', "Expected `float`"),
    (GOOD + "timeout = 61", "<= 60"),
    (GOOD + "max_attempts = 0", ">= 1"),
    (GOOD + 'events = ["everything"]', "unknown event 'everything'"),
    (GOOD + 'severity = "s3cret"', "webhook.ops.severity: must be one of info, warning, error"),
    (GOOD + 'include = ["s3cret"]', "webhook.ops.include[0]: must be one of question, error"),
    (GOOD + "timeout = " + "1" * 5000, "not TOML"),
    (GOOD + "timeout = 0x" + "f" * 5000, "webhook.ops.timeout"),
    ("webhook = 3", "webhook: Expected `object`"),
    ('[webhook]\nops = "s3cret"', "webhook"),
    (GOOD.replace('["*"]', "[]"), "buses is empty"),
    (GOOD.replace('"*"', '"project"'), "depends on the working directory"),
    (GOOD.replace("secret = ", "# "), "needs one secret"),
    (GOOD + 'secret_variable = "S"', "needs one secret"),
    (GOOD.replace(SECRET, "whsec_czNjcmV0"), "24 to 64 bytes"),
    (GOOD.replace(SECRET, "whsec_s3cret!"), "not base64"),
    (GOOD + "signed = false", "is not signed"),
    (GOOD + 'headers = { "Webhook-Id" = "s3cret" }', "cannot be set"),
    (GOOD + 'headers = { "X-A" = "a\\r\\nX-B: s3cret" }', "is invalid"),
    (GOOD + 'allow = ["intranet"]', "is not a network"),
    (GOOD + 'ca_file = "s3cret.pem"', "not an absolute path"),
    (GOOD.replace("webhook.ops", 'webhook."o ps"'), "is not a name"),
    (GOOD + COMMAND.replace("desk", "ops"), "both a webhook and a command"),
    (COMMAND.replace("/bin/true", "true"), "absolute path"),
    (COMMAND.replace('["/bin/true", "s3cret"]', "[]"), "absolute path"),
    (COMMAND.replace('["/bin/true", "s3cret"]', '"/bin/true s3cret"'), "Expected `array`"),
    (COMMAND + 'environment = ["A=s3cret"]', "not the name of a variable"),
    (COMMAND.replace('"s3cret"', r'"s3cret\u0000"'), "NUL character"),
    (GOOD.replace(f'secret = "{SECRET}"', 'secret_variable = "S=s3cret"'), "not the name of a variable"),
    ('owner = ""\n' + GOOD, "1 to 200 printable characters"),
])  # fmt: skip
def test_an_invalid_file_is_refused_without_its_values(text: str, words: str) -> None:
    assert words in refused(text)


@each("url, words", [
    ("ftp://host/s3cret", "must start with"),
    ("file:///s3cret", "must start with"),
    ("https://user:s3cret@host/", "has credentials"),
    ("https://host/#s3cret", "fragment"),
    ("https://host/\\ns3cret", "must be encoded"),
    ("https://host/a s3cret", "must be encoded"),
    ("https://host\\\\s3cret/", "must be encoded"),
    ("https:///s3cret", "no valid host"),
    ("https://host:99999/s3cret", "is not a URL"),
    ("https://[::1/s3cret", "is not a URL"),
    ("http://2130706433/s3cret", "unusual form"),
    ("http://0177.0.0.1/s3cret", "unusual form"),
    ("http://0x7f.1/s3cret", "unusual form"),
    ("http://127.1/s3cret", "unusual form"),
    ("http://a..b/s3cret", "no valid host"),
    ("http://[::1%25s3cret/]/", "is not a URL"),
    ("http://[1:s3cret]/", "is not a URL"),
    ("http://a../s3cret", "no valid host"),
    (f"http://{'a' * 64}.example.org/s3cret", "no valid host"),
    ("http://ⓗost/s3cret", "must be encoded"),
])  # fmt: skip
def test_an_unsuitable_url_is_refused(url: str, words: str) -> None:
    assert words in refused(GOOD.replace("https://hooks.example.org/s3cret", url))


def test_a_url_is_split() -> None:
    assert parse_url("https://Hooks.example.org./a?b=c").path == "/a?b=c"
    target = parse_url("http://[2001:DB8::1]:8080")
    assert (target.host, target.port, target.authority, target.path) == (
        "2001:db8::1", 8080, "[2001:db8::1]:8080", "/",
    )  # fmt: skip


@each(
    "mode, words",
    [
        (0o644, "mode is 0644"),
        (0o620, "mode is 0620"),
        (0o602, "mode is 0602"),
    ],
)
def test_a_file_that_others_can_read_or_write_is_refused(user: UserSettings, mode: int, words: str) -> None:
    user.write(GOOD, mode)
    with pytest.raises(InvalidSettings, match=words) as found:
        load(KINDS)
    assert found.value.fix == f"check its content, then chmod 600 {user.path}"
    user.path.chmod(0o600)
    assert list(load(KINDS).notifiers) == ["ops"]


def test_a_file_of_another_user_is_refused(user: UserSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    user.write(GOOD)
    if os.geteuid() == 0:
        os.chown(user.path, 4711, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(InvalidSettings, match="belongs to another user"):
        load(KINDS)


@each("content, words", [(b"\xff", "not UTF-8"), (b"#" * (1 << 20) + b"\n", "larger than 1 MiB")])
def test_a_file_that_cannot_be_read_as_text_is_refused(user: UserSettings, content: bytes, words: str) -> None:
    user.write("")
    user.path.write_bytes(content)
    with pytest.raises(InvalidSettings, match=words):
        load(KINDS)


def test_a_link_that_leads_to_itself_is_refused(user: UserSettings) -> None:
    user.path.parent.mkdir(parents=True)
    user.path.symlink_to(user.path)
    with pytest.raises(InvalidSettings, match="symbolic links") as found:
        load(KINDS)
    assert found.value.fix == "make it readable"


def test_no_file_and_no_regular_file(user: UserSettings) -> None:
    assert load(KINDS).notifiers == {}
    user.path.parent.mkdir(parents=True)
    os.mkfifo(user.path, 0o600)
    with pytest.raises(InvalidSettings, match="not a regular file"):
        load(KINDS)
    user.path.unlink()
    user.path.mkdir()
    with pytest.raises(InvalidSettings, match="not a regular file"):
        load(KINDS)


@each("mode", [0o777, 0o1777, 0o770])
def test_a_directory_that_others_can_write_is_refused(user: UserSettings, mode: int) -> None:
    user.write(GOOD)
    user.path.parent.chmod(mode)
    with pytest.raises(InvalidSettings, match=f"mode is {mode:04o}") as found:
        load(KINDS)
    assert found.value.fix == f"check its files, then chmod go-w {user.path.parent}"
    user.path.parent.chmod(0o755)
    assert list(load(KINDS).notifiers) == ["ops"]


def test_a_relative_configuration_directory_is_not_that_of_a_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project cannot bring the file along: neither by the working directory nor by a relative path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", "config")
    UserSettings(tmp_path / "config").write(GOOD)
    UserSettings(tmp_path).write(GOOD)
    assert load(KINDS).notifiers == {}


def test_a_secret_may_be_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    text = GOOD.replace(f'secret = "{SECRET}"', 'secret_variable = "OPS"')
    found: Any = parse(text, "FILE", KINDS).notifiers["ops"]
    assert isinstance(found, Webhook)
    with pytest.raises(ValueError, match="OPS is not set"):
        secret_key(found)
    monkeypatch.setenv("OPS", SECRET)
    assert secret_key(found) == b"0123456789abcdef0123456789abcdef"
