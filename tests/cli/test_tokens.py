"""Tokens of HTTP clients, and the URL of a running server, on the command line."""

from __future__ import annotations

import json
import os
import signal
import tomllib
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from agentbus.cli.commands.serve import PACKAGES
from agentbus.engine.url import DRIVER
from tests.cli.conftest import Shell, until


def test_a_token_is_created_listed_and_revoked(shell: Shell) -> None:
    secret = shell.say("token", "create", "read", "--operator", "ada")
    assert secret.startswith("ab_")
    (token,) = shell.json("token", "list")
    assert (token["role"], token["operator"], token["expires"]) == ("read", "ada", None)
    assert secret not in str(token)
    assert shell.refused("token", "create", "admin", code=2)["code"] == "out_of_range"
    shell.say("token", "revoke", token["id"])
    assert shell.refused("token", "revoke", token["id"], code=1)["code"] == "unknown_token"


def test_the_fix_for_missing_packages_installs_the_extra() -> None:
    """Not by the name of this package, which is another one in the index of packages."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert [*PACKAGES] == extras["web"]
    assert extras["postgres"] == [DRIVER]


@pytest.mark.slow
def test_a_server_is_shown_by_status_and_ends_with_an_interrupt(shell: Shell, tmp_path: Path) -> None:
    shell.environment["XDG_STATE_HOME"] = str(tmp_path)
    # The browser of the user: it records its arguments, and the page that it is to open.
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(
        f'#!/bin/sh\nexec > {seen}\necho "$@"\nfile=${{1#file://}}\nstat -c %a "$file"\ncat "$file"\necho\necho done\n'
    )
    browser.chmod(0o700)
    shell.environment["BROWSER"] = f"{browser} %s"
    options = ("--open", "--read-only", "--base-path", "/team", "--allowed-host", "agents.example")
    server = shell.start("serve", "--port", "0", "--json", *options)
    try:
        assert server.stdout is not None
        found = json.loads(server.stdout.readline())["data"]
        assert found["login"].startswith(f"{found['url']}#token=ab_")
        assert shell.json("status")["servers"] == [{"url": found["url"], "pid": server.pid}]
        assert found["url"].endswith("/team/")
        secret = found["login"].partition("=")[2]
        headers = {"Authorization": f"Bearer {secret}", "Host": "agents.example"}
        request = Request(f"{found['url']}api/v1/identity", headers=headers)  # noqa: S310 - our own server
        with urlopen(request, timeout=20) as answer:  # noqa: S310
            identity = json.load(answer)
        assert (identity["role"], identity["read_only"]) == ("operate", True)
        until(lambda: seen.exists() and seen.read_text().endswith("done\n"))
        page, mode, content, _ = seen.read_text().splitlines()
        assert page.startswith("file://")
        assert secret not in page, "other users see the arguments of a process"
        assert mode == "600"
        assert f"url={found['login']}" in content
        os.kill(server.pid, signal.SIGINT)
        assert server.wait(20) == 130
    finally:
        server.kill()
        server.wait()
        for stream in (server.stdout, server.stderr):
            if stream is not None:
                stream.close()
    until(lambda: shell.json("status")["servers"] == [])
    assert not Path(page.removeprefix("file://")).exists()
