"""The Grafana dashboard and the alerts in docs/: they name series and labels that exist, and PromQL that is valid."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from agentbus import Bus
from agentbus.api.metrics import collect
from agentbus.cli.command_table import COMMANDS
from agentbus.records import MetricFamily
from tests.support.prometheus import check_rules, promtool

DOCS = Path(__file__).resolve().parents[2] / "docs"
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana" / "agentbus.json").read_text(encoding="utf-8"))
RULES = DOCS / "prometheus" / "agentbus.rules.yml"
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
OF_PROMETHEUS = {"job", "instance", "le"}
"""Labels that a scrape adds, and that of a histogram."""

pytestmark = pytest.mark.one_engine


async def series(bus: Bus) -> dict[str, set[str]]:
    """The labels of every series that a server has, by name."""
    await bus.tasks.start("build")
    agent = await bus.register("a", type="worker", pools=["p"])
    families: list[MetricFamily] = await collect(bus, "here", process=True, changes={})
    await agent.stop()
    found: dict[str, set[str]] = {}
    for family in families:
        assert family.samples, family.name
        for sample in family.samples:
            found.setdefault(family.name + sample.suffix, set()).update(sample.labels)
    return found


def check(expression: str, known: dict[str, set[str]]) -> set[str]:
    """Return the series that an expression names. Each of them, and each of its labels, must exist."""
    names = set(re.findall(r"\b(?:agentbus|process)_[a-z_]+\b", re.sub(r'"[^"]*"', "", expression)))
    assert names <= known.keys(), names - known.keys()
    labels = OF_PROMETHEUS.union(*(known[name] for name in names))
    used = set(re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)\s*\"", expression))
    for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression):
        used |= {label.strip() for label in group.split(",")}
    assert used <= labels, (expression, used - labels)
    return names


async def test_every_query_of_the_dashboard_names_series_that_exist(bus: Bus) -> None:
    known = await series(bus)
    used = set().union(*(check(query, known) for query in QUERIES))
    for variable in DASHBOARD["templating"]["list"][1:]:
        check(variable["definition"], known)
    # What no panel shows was left out on purpose.
    left = {re.sub(r"_(bucket|sum|count)$", "", name) for name in known} - {
        re.sub(r"_(bucket|sum|count)$", "", name) for name in used
    }
    assert left - {"process_resident_memory_bytes"} == {
        "agentbus_build_info",
        "agentbus_state_changes_total",
        "process_start_time_seconds",
    }
    with pytest.raises(AssertionError):
        check("sum(agentbus_no_such_series)", known)
    with pytest.raises(AssertionError):
        check('agentbus_agents{agent="a"}', known)


def test_the_dashboard_can_be_imported() -> None:
    """Its structure: what Grafana requires of a dashboard, and a layout without overlaps."""
    assert DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD["id"] is None
    assert DASHBOARD["title"] == DASHBOARD["uid"] == "agentbus"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    required = {one["id"] for one in DASHBOARD["__requires"] if one["type"] == "panel"}
    assert {panel["type"] for panel in PANELS} == required
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    for place in places:
        assert place["x"] + place["w"] <= 24
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        )  # fmt: skip
        assert apart, (one, other)
    for panel in PANELS:
        assert panel["title"]
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == sorted(set(letters))
        for part in (panel, *panel["targets"]):
            # The data source is chosen when it is opened, not by an id of the machine that it was made on.
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$(?:\{)?([a-z]+)", json.dumps(DASHBOARD))) - {"__rate_interval"} <= names


async def test_every_series_is_documented(bus: Bus) -> None:
    page = (DOCS / "telemetry.md").read_text(encoding="utf-8")
    documented = {re.sub(r"\{.*", "", name) for name in re.findall(r"`((?:agentbus|process)_[^`]+)`", page)}
    assert documented == {re.sub(r"_(bucket|sum|count)$", "", name) for name in await series(bus)}


async def test_every_alert_names_series_and_commands_that_exist(bus: Bus) -> None:
    known = await series(bus)
    text = RULES.read_text(encoding="utf-8")
    named = set(re.findall(r"\bagentbus_[a-z_]+\b", text))
    assert len(named) >= 10
    assert named <= known.keys()
    commands = set(re.findall(r"\bagentbus ([a-z]+)", "\n".join(re.findall("description: (.*)", text))))
    assert len(commands) >= 5
    assert commands <= COMMANDS.keys()


def test_promtool_accepts_the_queries_and_the_alerts(tmp_path: Path) -> None:
    assert "12 rules found" in check_rules(RULES)
    rules = tmp_path / "dashboard.yml"
    expressions = [
        query.replace("$__rate_interval", "5m").replace("$job", ".*").replace("$instance", ".*") for query in QUERIES
    ]
    group = {"name": "dashboard", "rules": [{"record": f"q:{n}", "expr": one} for n, one in enumerate(expressions)]}
    rules.write_text(json.dumps({"groups": [group]}), encoding="utf-8")
    assert f"{len(QUERIES)} rules found" in check_rules(rules)


def test_alerts_fire_when_they_should_and_not_before(tmp_path: Path) -> None:
    def expected(name: str, minute: int, **labels: str) -> dict[str, Any]:
        found = [{"exp_labels": labels}] if labels else []
        return {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": found}

    source = 'job="agentbus", instance="i"'
    here = {"job": "agentbus", "instance": "i"}
    test = {
        "interval": "1m",
        "input_series": [
            {"series": f"up{{{source}}}", "values": "1x5 0x20"},
            {
                "series": f'agentbus_queue_messages{{{source}, kind="pool", pool="p", status="queued"}}',
                "values": "3x30",
            },
            {
                "series": f'agentbus_queue_messages{{{source}, kind="pool", pool="q", status="queued"}}',
                "values": "3x30",
            },
            {"series": f'agentbus_pool_members{{{source}, pool="p"}}', "values": "0x30"},
            {"series": f'agentbus_pool_members{{{source}, pool="q"}}', "values": "1x30"},
            {"series": f'agentbus_sessions{{{source}, status="interrupted"}}', "values": "0x10 1x20"},
        ],
        "alert_rule_test": [
            expected("AgentbusDown", 5),
            expected("AgentbusDown", 10, severity="warning", **here),
            expected("AgentbusPoolWithoutMembers", 3),
            expected("AgentbusPoolWithoutMembers", 8, severity="warning", pool="p", **here),
            expected("AgentbusSessionInterrupted", 12),
            expected("AgentbusSessionInterrupted", 20, severity="warning", status="interrupted", **here),
        ],
    }
    file = tmp_path / "test.yml"
    # Annotations are compared too: alerts without them are tested.
    bare = tmp_path / "bare.yml"
    lines = RULES.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not re.match(r" +(annotations:|summary:|description:)", line)]
    bare.write_text("\n".join(kept), encoding="utf-8")
    file.write_text(json.dumps({"rule_files": [str(bare)], "tests": [test]}), encoding="utf-8")
    done = subprocess.run(
        [promtool(), "test", "rules", file], capture_output=True, timeout=30, check=False, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
