"""A server that agentbus.toml names gets no credentials but those in its URL, until the user accepts it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentbus.cli.context import FILE
from tests.cli.conftest import Shell
from tests.support.guarded import SECRET
from tests.support.postgres import at_schema, server_url
from tests.support.stealing import Thief, thief


@pytest.fixture
def server() -> Iterator[Thief]:
    with thief() as found:
        yield found


@pytest.fixture
def clone(nowhere: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A repository that was cloned, and a user with a configuration of its own."""
    home = nowhere.directory / "user"
    (nowhere.directory / ".agentbus").mkdir()
    home.mkdir()
    for name in [name for name in os.environ if name.startswith(("PG", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    return nowhere


def name(shell: Shell, url: str) -> None:
    (shell.directory / ".agentbus" / FILE).write_text(f'url = "{url}"\n')


def kept(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize("where", ["PGPASSWORD", "PGPASSFILE", ".pgpass"])
def test_a_password_of_the_user_is_sent_only_to_a_server_that_the_user_accepted(
    clone: Shell, server: Thief, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = f"*:*:*:*:{SECRET}\n"
    if where == "PGPASSWORD":
        monkeypatch.setenv(where, SECRET)
    elif where == "PGPASSFILE":
        monkeypatch.setenv(where, kept(clone.directory / "user" / "passwords", line))
    else:
        kept(clone.directory / "user" / where, line)
    name(clone, f"postgresql://u@127.0.0.1:{server.port}/d")
    error = clone.refused("status", code=1)
    assert (error["code"], server.passwords) == ("untrusted_server", [""])
    assert error["fix"] == f"if you trust this server: agentbus trust postgresql://127.0.0.1:{server.port}"
    clone.told("trust", f"postgresql://127.0.0.1:{server.port}")
    assert clone.refused("status", code=1)["code"] == "access_denied"
    assert server.passwords == ["", SECRET]
    clone.told("trust", "--remove", f"postgresql://127.0.0.1:{server.port}")
    clone.told("doctor", code=1)
    assert server.passwords == ["", SECRET, ""]


def test_a_password_in_the_url_and_a_url_that_the_user_gave_work_as_ever(
    clone: Shell, server: Thief, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    name(clone, f"postgresql://u:own@127.0.0.1:{server.port}/d")
    assert clone.refused("status", code=1)["code"] == "access_denied"
    clone.refused("status", "--url", f"postgresql://u@127.0.0.1:{server.port}/d", code=1)
    assert server.passwords == ["own", SECRET]


@pytest.mark.parametrize(
    "more", ["?passfile=/p", "?sslcert=/c&sslkey=/k", "?service=prod", "?krbsrvname=x", "?host=127.0.0.1&gsslib=sspi"]
)
def test_a_url_of_a_repository_cannot_borrow_what_the_user_has(clone: Shell, server: Thief, more: str) -> None:
    name(clone, f"postgresql://u@127.0.0.1:{server.port}/d{more}")
    assert clone.refused("status", code=1)["code"] == "untrusted_server"
    assert server.clients == 0


def test_a_service_of_the_user_is_never_used_for_a_repository(
    clone: Shell, server: Thief, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be another server than the one that was accepted."""
    monkeypatch.setenv("PGPORT", str(server.port))
    kept(clone.directory / "user" / ".pg_service.conf", f"[prod]\nhost=127.0.0.1\npassword={SECRET}\n")
    clone.told("trust", "postgresql://localhost")
    name(clone, "postgresql:///d?service=prod")
    assert clone.refused("status", code=1)["code"] == "untrusted_server"
    assert server.clients == 0


def test_a_certificate_of_the_user_is_not_shown(clone: Shell, server: Thief, monkeypatch: pytest.MonkeyPatch) -> None:
    name(clone, f"postgresql://u@127.0.0.1:{server.port}/d")
    kept(clone.directory / "user" / ".postgresql" / "postgresql.crt", "")
    assert "certificate" in clone.refused("status", code=1)["message"]
    name(clone, f"postgresql://u@127.0.0.1:{server.port}/d?sslmode=disable")
    assert server.clients == 0
    clone.refused("status", code=1)
    assert server.passwords == [""]


def test_a_ticket_of_the_user_is_not_shown(clone: Shell) -> None:
    with thief(asks=7) as server:
        name(clone, f"postgresql://u@127.0.0.1:{server.port}/d")
        assert clone.refused("status", code=1)["code"] == "untrusted_server"
        assert (server.clients, server.passwords) == (1, [])


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://a@127.0.0.1:{thief},x@127.0.0.1:1/d",
        "postgresql://127.0.0.1:1,127.0.0.1:{thief}/d",
        "postgresql:///d?host=127.0.0.1:1&port={thief}",
        "postgresql:///d?host=127.0.0.1&host=&port={thief}",
    ],
)
def test_a_url_cannot_hide_a_server_behind_one_that_is_accepted(
    clone: Shell, server: Thief, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    clone.told("trust", "postgresql://127.0.0.1:1")
    clone.told("trust", "postgresql://127.0.0.1:5432")
    name(clone, url.format(thief=server.port))
    assert clone.refused("status", code=1 if "@" not in url else 2)["code"] in ("untrusted_server", "invalid_url")
    assert SECRET not in server.passwords


def test_a_command_that_is_run_for_an_agent_gets_no_more(clone: Shell, schemas: object) -> None:
    """The URL is passed on in the environment, where it would look like one that the user gave."""
    name(clone, at_schema(server_url(), "cloned"))
    clone.environment |= {"XDG_STATE_HOME": str(clone.directory / "state")}
    clone.say("init")
    assert "credentials=url" in clone.say("run", "--agent", "r", "--", "sh", "-c", "echo $AGENTBUS_URL")
