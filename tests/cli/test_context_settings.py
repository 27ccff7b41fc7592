"""Where a bus is, and which settings hold."""

from __future__ import annotations

from tests.cli.conftest import Shell


def test_a_bus_is_found_from_below(shell: Shell) -> None:
    shell.register("a")
    below = shell.directory / "deep" / "down"
    below.mkdir(parents=True)
    inner = Shell(below)
    assert inner.say("agents").startswith("a\t")
    # Making one below makes another.
    assert inner.say("init") == str(below / ".agentbus")
    assert inner.say("agents") == ""
    assert inner.json("init") == {"path": str(below / ".agentbus"), "made": False}


def test_settings_come_from_the_file_the_environment_and_options(shell: Shell) -> None:
    shell.environment |= {"AGENTBUS_VISITOR_LEASE": "60", "AGENTBUS_LOCK_TIMEOUT": "5"}
    file = shell.directory / ".agentbus" / "agentbus.toml"
    file.write_text("visitor_lease = 90\nmax_payload = 2000\nlock_timeout = 5\n")
    settings = shell.json("status", "--agent", "nobody", agent="somebody")["settings"]
    assert settings["visitor_lease"] == {"value": 60.0, "source": "environment"}
    assert settings["lock_timeout"] == {"value": 5.0, "source": "environment"}
    assert settings["max_payload"] == {"value": 2000, "source": "agentbus.toml"}
    assert settings["agent"] == {"value": "nobody", "source": "option"}
    assert settings["durability"] == {"value": "disk", "source": "default"}
    shell.say("register", "a", "--type", "worker")
    assert shell.json("send", "a", "note", f'"{"x" * 3000}"', agent="a", code=2)["code"] == "payload_too_large"


def test_a_setting_that_the_file_and_the_environment_contradict_is_noted_once(shell: Shell) -> None:
    shell.environment |= {"AGENTBUS_VISITOR_LEASE": "60", "AGENTBUS_LOCK_TIMEOUT": "5"}
    file = shell.directory / ".agentbus" / "agentbus.toml"
    file.write_text("visitor_lease = 90\nlock_timeout = 5\n")
    noted = shell.run("agents").err.splitlines()
    assert [line for line in noted if "took precedence" in line] == noted
    assert ["AGENTBUS_VISITOR_LEASE" in line and "LOCK" not in line for line in noted] == [True]
    assert shell.run("agents", "--quiet").err == ""


def test_the_earlier_names_of_settings_work_with_a_note(shell: Shell) -> None:
    file = shell.directory / ".agentbus" / "agentbus.toml"
    file.write_text("lease = 90\n")
    found = shell.run("status", "--settings")
    assert "setting\tvisitor_lease\t90 (agentbus.toml)" in found.out.splitlines()
    assert "visitor_lease" in found.err
    assert shell.json("status")["settings"]["lease"]["value"] == 90
    shell.environment["AGENTBUS_LEASE"] = "70"
    found = shell.run("status", "--settings")
    assert "setting\tvisitor_lease\t70.0 (environment)" in found.out.splitlines()
    assert "AGENTBUS_VISITOR_LEASE" in found.err


def test_a_wrong_file_says_so(shell: Shell) -> None:
    file = shell.directory / ".agentbus" / "agentbus.toml"
    for text, word in (("lease = ", "agentbus.toml"), ("leese = 1", "lease"), ('lease = "long"', "a number")):
        file.write_text(text)
        error = shell.json("status", code=2)
        assert word in error["message"] + error["fix"]
    file.unlink()
    shell.environment["AGENTBUS_LEASE"] = "long"
    assert "AGENTBUS_LEASE" in shell.json("status", code=2)["message"]


def test_the_file_may_name_another_bus(shell: Shell) -> None:
    there = shell.directory / "there"
    shell.say("init", "--url", str(there))
    (shell.directory / ".agentbus" / "agentbus.toml").write_text(f'url = "{there}"\n')
    shell.say("register", "a", "--type", "worker")
    assert shell.say("agents", "--url", str(there)).startswith("a\t")
    assert shell.say("agents", "--url", str(shell.directory / ".agentbus")) == ""


def test_a_directory_that_the_file_names_is_relative_to_the_project(shell: Shell) -> None:
    (shell.directory / ".agentbus" / "agentbus.toml").write_text('url = "there"\n')
    (shell.directory / "deep").mkdir()
    for place in (shell, Shell(shell.directory / "deep")):
        place.say("init")
    assert (shell.directory / "there" / "bus.db").exists()
    assert not (shell.directory / "deep" / "there").exists()


def test_a_directory_outside_of_the_project_has_to_be_accepted(shell: Shell) -> None:
    shell.environment["XDG_CONFIG_HOME"] = str(shell.directory / "config")
    outside = shell.directory.parent / f"{shell.directory.name}-outside"
    outside.mkdir(mode=0o700)
    (shell.directory / "link").symlink_to(outside)
    for url in (str(outside), "link", f"../{outside.name}"):
        (shell.directory / ".agentbus" / "agentbus.toml").write_text(f'url = "{url}"\n')
        error = shell.refused("status", code=1)
        assert (error["code"], f"agentbus trust {outside.resolve()}" in error["fix"]) == ("untrusted_home", True)
    assert list(outside.iterdir()) == []
    shell.say("status", "--url", str(shell.directory / ".agentbus"))
    shell.say("trust", str(outside))
    shell.say("init", "--url", str(outside))
    shell.say("register", "a", "--type", "worker")
    assert shell.say("agents", "--url", str(outside)).startswith("a\t")


def test_status_shows_what_is_going_on(shell: Shell) -> None:
    shell.register("a")
    shell.say("send", "a", "note", "1", agent="a")
    data = shell.json("status")
    assert data["counts"] == {"agents": {"running": 1}, "messages": {"queued": 1}}
    assert [agent["id"] for agent in data["agents"]] == ["a"]
    assert data["queues"][0]["recipient"] == "a"
    lines = shell.say("status").splitlines()
    assert "agents\trunning\t1" in lines
    assert "queue\ta\t1" in lines
