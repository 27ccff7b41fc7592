"""The files of the dashboard: their size, their origin, and that they need nothing from elsewhere."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path

import pytest

from agentbus import Bus
from agentbus.web.files import FOLDER
from tests.web.client import Client
from tests.web.conftest import serving

STATIC = Path(FOLDER)
VENDOR = STATIC.parent / "vendor"
MAX_RAW = 300_000
MAX_COMPRESSED = 80_000
OWN = sorted(path for path in STATIC.glob("*.js") if path.name != "vendor.js")


def test_the_dashboard_is_small() -> None:
    contents = [path.read_bytes() for path in STATIC.rglob("*") if path.is_file()]
    assert sum(map(len, contents)) <= MAX_RAW
    # Each file is compressed alone, as the server sends it.
    assert sum(len(gzip.compress(one, 9)) for one in contents) <= MAX_COMPRESSED


def test_the_bundle_is_the_recorded_one_and_has_its_licences() -> None:
    digest, name = (VENDOR / "SHA256").read_text().split()
    assert name == "vendor.js"
    assert hashlib.sha256((STATIC / "vendor.js").read_bytes()).hexdigest() == digest
    licences = (STATIC / "vendor-licenses.txt").read_text()
    package = (VENDOR / "package.json").read_text()
    for dependency, version in re.findall(r'"([@/\w]+)": "([\d.]+)"', package.partition("devDependencies")[0]):
        assert f"{dependency} {version}" in licences


def test_nothing_is_loaded_from_elsewhere_or_evaluated() -> None:
    for path in [*OWN, STATIC / "style.css", STATIC / "index.html", STATIC / "vendor.js"]:
        text = path.read_text()
        foreign = [url for url in re.findall(r"https?://[\w.]+", text) if url != "http://www.w3.org"]
        assert foreign == [], path.name
        assert not re.search(r"\beval\(|new Function\(|innerHTML\s*=|document\.write|insertAdjacentHTML", text) or (
            path.name == "vendor.js"
        ), path.name
        assert "dangerouslySetInnerHTML" not in text or path.name == "vendor.js"


def test_every_import_exists() -> None:
    exported = {path.name: _exports(path.read_text()) for path in OWN}
    exported["vendor.js"] = set(re.findall(r"\bas (\w+)", (STATIC / "vendor.js").read_text()))
    wrong = [
        (path.name, name, source)
        for path in OWN
        for names, source in re.findall(r'^import \{([^}]*)\} from "\./([\w.]+)";', path.read_text(), re.M)
        for name in (one.strip() for one in names.split(","))
        if name not in exported[source]
    ]
    assert wrong == []
    page = (STATIC / "index.html").read_text()
    for name in re.findall(r'"static/([\w.-]+)"', page):
        assert (STATIC / name).is_file(), name


def _exports(text: str) -> set[str]:
    found = set(re.findall(r"^export (?:async )?(?:function|const|class|let) (\w+)", text, re.M))
    for names in re.findall(r"^export \{([^}]*)\}", text, re.M):
        found |= {one.strip() for one in names.split(",")}
    return found


@pytest.mark.one_engine
async def test_the_page_is_served_below_a_path_with_a_strict_policy(bus: Bus) -> None:
    async with serving(bus, base_path="/team/bus") as client:
        page = await client.get("/team/bus/")
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        policy = page.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        for name in re.findall(rb'"(static/[\w.-]+)"', page.body):
            assert (await client.get(f"/team/bus/{name.decode()}")).status == 200


@pytest.mark.one_engine
async def test_unchanged_files_are_not_sent_again(client: Client) -> None:
    first = await client.get("/static/app.js", Accept_Encoding="gzip")
    assert first.headers["content-encoding"] == "gzip"
    again = await client.get("/static/app.js", Accept_Encoding="gzip", If_None_Match=first.headers["etag"])
    assert (again.status, again.body) == (304, b"")
