"""Follow one trace from a person's command through a worker to the calls of a coding agent.

Four processes take part: ``agentbus task start``, a worker, the coding agent that a step of the worker starts (a shell
script here), and the command that the coding agent calls. None of them is told of the trace: ``AGENTBUS_OTEL=1`` is in
their environment, and the task, the message and ``TRACEPARENT`` carry its context. This program receives their spans by
OTLP, in place of a collector, and prints them as a tree.

    pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http
    python examples/trace_across_processes.py       # on a temporary bus
    python examples/trace_across_processes.py BUS   # a directory, or postgresql://user@host/database
"""

import asyncio
import gzip
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import agentbus
from agentbus import telemetry

AGENTBUS = Path(sys.executable).with_name("agentbus")  # the command installed beside this Python
SPANS: list[tuple[str, Any]] = []


def code(request: str) -> str:
    """Start a coding agent, which continues the trace of this step."""
    script = f'"{AGENTBUS}" send pool:reviewers note \'{{"text": "{request} is written"}}\' --by coder --quiet'
    environment = {**os.environ, **telemetry.environment(), "OTEL_SERVICE_NAME": "coding agent"}
    subprocess.run(["/bin/sh", "-c", script], env=environment, check=True)
    return f"{request}: done"


@agentbus.workflow("feature")
async def feature(task: agentbus.Task, request: str) -> str:
    return await task.step("code", code, request)


async def work() -> None:
    """Work until nothing is left to do: one task, then the message that its coding agent sends."""
    async with agentbus.connect() as bus, bus.agent("reviewer-1", type="reviewer", pools=["reviewers"]) as reviewer:
        await bus.tasks.run_worker(feature, until_idle=True)
        async for message in reviewer.inbox():
            async with message as unit:
                unit.state.set("reviewed", message.payload["text"])
            break


class Receiver(BaseHTTPRequestHandler):
    """Receive spans by OTLP over HTTP, as a collector does."""

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            SPANS.extend((names["service.name"], span) for scope in resource.scope_spans for span in scope.spans)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""


def show(parent: bytes, depth: int) -> None:
    """Print the spans below a span, oldest first."""
    children = [one for one in SPANS if one[1].parent_span_id == parent and not one[1].name.startswith("receive")]
    for service, span in sorted(children, key=lambda one: one[1].start_time_unix_nano):
        print(f"{'  ' * depth}{span.name}  ({service})")
        show(span.span_id, depth + 1)


def story(url: str) -> None:
    with agentbus.sync.connect(url):
        pass  # the bus is there from now on
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        environment = {
            **os.environ,
            "AGENTBUS_URL": url,
            "AGENTBUS_OTEL": "1",
            "OTEL_BSP_EXPORT_TIMEOUT": "30000",  # also on a busy machine
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.server_address[1]}",
        }

        def run(service: str, *command: str) -> None:
            subprocess.run(command, env={**environment, "OTEL_SERVICE_NAME": service}, check=True)

        run("person", str(AGENTBUS), "task", "start", "feature", '"login"', "--id", "login-1")
        run("worker", sys.executable, __file__, "--worker")
        receiver.shutdown()
    traces = {span.trace_id for _, span in SPANS if not span.name.startswith("receive")}
    print(f"{len(SPANS)} spans, {len(traces)} trace:")
    show(b"", 0)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["--worker"]:
            asyncio.run(work())
        case [url]:
            story(url)
        case _:
            with tempfile.TemporaryDirectory(prefix="agentbus-") as directory:
                main([directory])


if __name__ == "__main__":
    main(sys.argv[1:])
