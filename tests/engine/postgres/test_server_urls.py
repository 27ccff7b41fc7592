"""The URL of a bus on a server: what is accepted, what is refused, and that the password is never shown."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import agentbus
from agentbus.engine.postgres.server import parse
from agentbus.engine.url import require_driver
from agentbus.errors import AgentBusError, InvalidUrl, NoDriver
from tests.support.guarded import SECRET


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("postgresql://u:p@h/d?schema=1x", "schema"),
        ("postgresql://u:p@h/d?schema=", "schema"),
        ('postgresql://u:p@h/d?schema=a"b', "schema"),
        ("postgresql://u:p@h/d?schema=" + "x" * 64, "schema"),
        (f"postgresql://u:{SECRET}#x@h/d", "%23"),
        (f"postgresql://u:{SECRET}\n@h/d", "unprintable"),
        (f"postgresql://u:{SECRET}@[h/d", "postgresql://"),
        (f"postgresql://u:{SECRET}/x@h:1/d", "%2F"),
        (f"postgresql://u:x/{SECRET}@h:1/d", "%2F"),
        (f"postgresql:/u:{SECRET}@h:1/d", "%2F"),
        (f"postgresql://u:{SECRET}", "postgresql://"),
        (f"postgresql://u:{SECRET}@h:99999/d", "postgresql://"),
        (f"postgresql:///d?host=/tmp&port={SECRET}", "postgresql://"),
        (f"postgresql:u:{SECRET}@h/d", "postgresql://"),
        (f"postgresql://u:a/{SECRET}@h/d", "%2F"),
        (f"postgresql://u:1/{SECRET}@h/d", "%2F"),
        (f"postgresql://u:{SECRET}?a=b@h/d", "%3F"),
        (f"postgresql://u:1?{SECRET}=b@h/d", "%3F"),
        ("postgresql://u@h:port/d", "port"),
    ],
)
def test_a_url_that_cannot_be_right_is_refused(bad: str, said: str) -> None:
    with pytest.raises(InvalidUrl, match=said) as found:
        agentbus.connect(bad)
    assert SECRET not in str(found.value)
    assert SECRET not in repr(found.value.facts)


async def test_what_the_driver_cannot_use_is_a_named_error() -> None:
    with pytest.raises(AgentBusError):
        async with agentbus.connect("postgresql://u@h/d?nonsense=1&sslmode=what"):
            pass


@pytest.mark.parametrize(
    "good",
    [
        "postgresql://u:p@h,i/d",
        "postgresql://u:p@h:1,i:2/d",
        "postgresql://u:p@[::1]:1,[::2]/d",
        "postgresql://u@/d?host=/tmp&port=1",
        "postgresql://u:p%2F%40@h:65535/d%40e",
    ],
)
def test_every_form_of_hosts_and_ports_is_taken(good: str) -> None:
    assert parse(good).dsn.startswith(good.partition("?")[0])


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u@h1:1,h2:2/d",
        "postgresql://u@[::1]:5,h/d",
        "postgresql://h/d?user=me%40elsewhere",
        "postgresql:///d?host=%2Ftmp&port=5",
        "postgresql://%2Ftmp/d",
    ],
)
def test_whatever_names_a_server_stays_what_it_is(url: str) -> None:
    address = parse(url)
    assert address.plain == address.bare == address.dsn == url


def test_the_commands_for_a_backup_name_a_schema_with_capitals_as_it_is() -> None:
    assert """--schema='"MyBus"' """ in parse("postgresql://h/d?schema=MyBus").dump(None)


def test_an_address_is_shown_without_its_password() -> None:
    address = parse(f"postgresql://u:{SECRET}@h:1/d?schema=s&password={SECRET}&sslmode=require")
    assert address.shown == "postgresql://u@h:1/d?schema=s"
    assert SECRET not in address.plain + repr(address) + address.dump(None) + str(address.directory)
    assert "sslmode=require" in address.plain
    assert "schema" not in address.dsn
    assert SECRET in address.dsn


ROOT = Path(__file__).parents[3]


def test_a_missing_driver_is_named_as_the_project_names_it() -> None:
    with pytest.raises(NoDriver) as found, require_driver():
        raise ModuleNotFoundError(name="asyncpg")
    (driver,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["postgres"]
    assert found.value.fix == f"python -m pip install '{driver}'"


def test_nothing_advises_to_install_a_package_of_this_name_from_the_index() -> None:
    """The agentbus there is another project."""
    texts = [
        *ROOT.glob("*.md"),
        *(path for folder in ("agentbus", "benchmarks", "docs", "examples") for path in (ROOT / folder).rglob("*")),
    ]
    read = [path for path in texts if path.suffix in (".py", ".md", ".toml")]
    assert len(read) > 100
    advice = re.compile(r"(?:pip3?|uv|pipx|uvx)\b[^\n]*?[ \t]['\"]?agentbus(?:\[|['\"\s]|$)", re.MULTILINE)
    assert [path.name for path in read if advice.search(path.read_text())] == []
