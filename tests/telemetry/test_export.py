"""Export by OTLP: a receiver on loopback gets the spans of several processes, which are one trace."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus import telemetry
from agentbus.errors import NoTelemetry, OutOfRange
from agentbus.sync.bus import open_bus
from tests.conftest import copy_bus
from tests.support import zygote
from tests.support.traces import PARENT

TIMEOUT = 60.0
ROOT = Path(__file__).parents[2]
PATIENT = {"OTEL_BSP_EXPORT_TIMEOUT": "30000"}
"""The machine may be busy."""
FLOWS = """
import subprocess, agentbus

def code(task):
    # A coding agent in a process of its own, which calls the command line.
    environment = {**__import__("os").environ, **agentbus.telemetry.environment()}
    subprocess.run([%r, "send", "a", "note", '{"password": "s3cr3t"}', "--quiet"], env=environment, check=True)
    task.unit.publish("news", "note")

@agentbus.workflow("feature")
async def feature(task):
    await task.step("code", code, task)
"""


class Receiver(ThreadingHTTPServer):
    """An OTLP receiver over HTTP: it decodes what it gets by the published messages of the protocol."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.metrics: set[str] = set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

            traces = ExportTraceServiceRequest.FromString(body)
            for resource in traces.resource_spans:
                named = {one.key: one.value.string_value for one in resource.resource.attributes}
                self.services.add(named["service.name"])
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        else:
            from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

            found = ExportMetricsServiceRequest.FromString(body)
            self.metrics |= {
                metric.name for one in found.resource_metrics for scope in one.scope_metrics for metric in scope.metrics
            }


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.take(self.path, body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otel")
    with Receiver() as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.fixture
def directory(template: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="agentbus-otel-") as name:
        copy_bus(template, Path(name) / ".agentbus")
        (Path(name) / "flows.py").write_text(FLOWS % zygote.COMMAND)
        yield Path(name)


def run(directory: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTBUS_", "OTEL_"))}
    return zygote.run([zygote.COMMAND, *words], cwd=directory, env={**inherited, **variables}, timeout=TIMEOUT)


def test_one_trace_from_a_person_through_a_worker_to_the_calls_of_a_coding_agent(
    receiver: Receiver, directory: Path
) -> None:
    with open_bus(directory / ".agentbus") as bus:
        identity = bus.register("a", type="worker").identity
    variables = {
        "AGENTBUS_OTEL": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "AGENTBUS_AGENT": identity,
        "AGENTBUS_URL": str(directory / ".agentbus"), **PATIENT,
    }  # fmt: skip
    started = run(directory, "task", "start", "feature", "--id", "f-1", OTEL_SERVICE_NAME="person", **variables)
    assert started.returncode == 0, started.stderr
    worked = run(directory, "worker", "flows:feature", "--until-idle", **variables)
    assert worked.returncode == 0, worked.stderr
    spans = {span.name: span for span in receiver.spans}
    names = ["start feature", "invoke_workflow feature", "step code", "send agent:{id}"]
    assert set(names) <= set(spans)
    chain = [spans[name] for name in names]
    # Each is the parent of the next, across three processes.
    assert [span.parent_span_id for span in chain] == [b"", *(span.span_id for span in chain[:-1])]
    assert len({span.trace_id for span in chain}) == 1
    assert receiver.services == {"person", "agentbus"}
    # The worker runs for long and has metrics; the commands have none.
    assert receiver.metrics == {"messaging.client.sent.messages", "messaging.client.operation.duration"}
    assert b"s3cr3t" not in b"".join(span.SerializeToString() for span in receiver.spans)
    with open_bus(directory / ".agentbus") as bus:
        (delivery,) = bus.agent(identity).receive_many(1)
    assert delivery.headers["traceparent"].split("-")[1:3] == [chain[-1].trace_id.hex(), chain[-1].span_id.hex()]


def test_an_agent_under_run_is_a_span_and_the_parent_of_its_calls(receiver: Receiver, directory: Path) -> None:
    with open_bus(directory / ".agentbus") as bus:
        bus.do(bus.state("b").set("usage/tokens", 70))
    script = f"{zygote.COMMAND} send b note --quiet; exit 3"
    done = run(
        directory, "run", "--agent", "b", "--type", "executor", "--", "sh", "-c", script, AGENTBUS_OTEL="1",
        OTEL_METRICS_EXPORTER="none", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, TRACEPARENT=PARENT, **PATIENT,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    spans = {span.name: span for span in receiver.spans}
    life, sent = spans["invoke_agent executor"], spans["send agent:{id}"]
    attributes = {one.key: one.value.string_value or one.value.int_value for one in life.attributes}
    assert attributes == {
        "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.id": "b", "gen_ai.agent.name": "executor",
        "agentbus.agent.restart": 0, "agentbus.agent.status": "failed", "process.exit.code": 3, "error.type": "exit_3",
        "agentbus.usage.tokens": 70,
    }  # fmt: skip
    assert [life.trace_id.hex(), life.parent_span_id.hex()] == PARENT.split("-")[1:3]
    assert sent.parent_span_id == life.span_id
    assert receiver.metrics == set()


def test_an_endpoint_that_is_gone_delays_and_fails_no_command(directory: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otel")
    with open_bus(directory / ".agentbus") as bus:
        bus.register("a", type="worker")
    # The discard port, which answers with a refusal.
    variables = {"AGENTBUS_OTEL": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "AGENTBUS_AGENT": "a"}
    done = run(directory, "send", "a", "note", **variables)
    assert (done.returncode, done.stdout) == (0, b"m-1\n"), done.stderr


def test_telemetry_that_is_not_installed_is_named(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"]["otel"] == list(telemetry.REQUIREMENTS)
    for name in [name for name in sys.modules if name.startswith(("opentelemetry", "agentbus.telemetry."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.setenv("AGENTBUS_OTEL", "1")
    for attempt in (telemetry.enable, lambda: open_bus(directory / ".agentbus")):
        with pytest.raises(NoTelemetry, match="opentelemetry-sdk"):
            attempt()
    monkeypatch.setenv("AGENTBUS_OTEL", "0")
    open_bus(directory / ".agentbus").close()
    assert agentbus.core.tracer is None
    monkeypatch.setenv("AGENTBUS_OTEL", "maybe")
    with pytest.raises(OutOfRange):
        open_bus(directory / ".agentbus")
