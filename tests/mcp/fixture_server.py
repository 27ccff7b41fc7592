"""A server for the official conformance suite: its fixture tools on the dispatcher and the endpoint of this package.

Run it with ``python -m tests.mcp.fixture_server PORT``. The bus has no images and no jobs of a minute; the suite tests
by them what the dispatcher and the transport do. What this package does not offer at all is missing here too, and
listed with its reason in ``expected_failures.yml``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from agentbus.mcp.dispatcher import Cancellation, Context, Dispatcher, Reply
from agentbus.mcp.endpoint import MCPEndpoint
from agentbus.mcp.protocol import INTERNAL_ERROR, INVALID_PARAMS, TASKS, Fault, missing_capability
from agentbus.mcp.tasks import iso_time

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
SOUND = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
_KEY = os.urandom(32)
Answer = dict[str, Any] | Reply


def text(content: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": content}]}


class FixtureTool:
    """A tool of the suite."""

    def __init__(
        self,
        name: str,
        run: Callable[[Context, dict[str, Any]], Answer],
        properties: dict[str, Any] | None = None,
        schema: dict[str, Any] | None = None,
        waits: bool = False,
    ) -> None:
        self.name = name
        self._run = run
        self._schema = schema or {"type": "object", "properties": properties or {}}
        self._waits = waits

    def definition(self) -> dict[str, Any]:
        return {"name": self.name, "description": f"Fixture {self.name}", "inputSchema": self._schema}

    def waits(self, arguments: dict[str, Any]) -> bool:
        return self._waits

    def call(self, context: Context, arguments: dict[str, Any]) -> Answer:
        return self._run(context, arguments)


# Results


def error(context: Context, arguments: dict[str, Any]) -> Answer:
    return {**text("This tool intentionally returns an error for testing"), "isError": True}


def progress(context: Context, arguments: dict[str, Any]) -> Answer:
    for done in (0, 50, 100):
        context.progress(done, 100)
        time.sleep(0.02)
    return text("done")


def needs_sampling(context: Context, arguments: dict[str, Any]) -> Answer:
    if "sampling" not in context.capabilities:
        raise missing_capability({"sampling": {}})
    return text("done")


IMAGE = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
EMBEDDED = {
    "type": "resource",
    "resource": {"uri": "test://embedded-resource", "mimeType": "text/plain", "text": "An embedded resource."},
}


# Multi round-trip requests


def signed(state: dict[str, Any]) -> str:
    """Return a state that only this server can have made."""
    content = json.dumps(state).encode()
    mark = hmac.new(_KEY, content, hashlib.sha256).hexdigest()
    return base64.b64encode(content).decode() + "." + mark


def verified(state: object) -> dict[str, Any]:
    content, _, mark = str(state).partition(".")
    try:
        decoded = base64.b64decode(content, validate=True)
    except ValueError:
        decoded = b""
    if not hmac.compare_digest(hmac.new(_KEY, decoded, hashlib.sha256).hexdigest(), mark):
        raise Fault(INVALID_PARAMS, "the requestState was changed")
    found: dict[str, Any] = json.loads(decoded)
    return found


def question(message: str, field: str, kind: str = "string") -> dict[str, Any]:
    schema = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    params = {"mode": "form", "message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


SAMPLING = {
    "method": "sampling/createMessage",
    "params": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "What is the capital of France?"}}],
        "maxTokens": 100,
    },
}
ROOTS: dict[str, Any] = {"method": "roots/list", "params": {}}


def ask(requests: dict[str, Any], state: dict[str, Any] | None = None) -> dict[str, Any]:
    known = {} if state is None else {"requestState": signed(state)}
    return {"resultType": "input_required", "inputRequests": requests, **known}


def answers(context: Context) -> dict[str, Any]:
    found = context.request.params.get("inputResponses")
    return found if isinstance(found, dict) else {}


def content(answer: object, field: str) -> Any:
    """Return a field of an answered form; None if it was not answered as asked."""
    if not isinstance(answer, dict) or answer.get("action") != "accept":
        return None
    found = answer.get("content")
    return found.get(field) if isinstance(found, dict) else None


def asks_for(**requests: dict[str, Any]) -> Callable[[Context, dict[str, Any]], Answer]:
    """Return a tool that asks until everything is answered."""

    def run(context: Context, arguments: dict[str, Any]) -> Answer:
        given = answers(context)
        if not all(isinstance(given.get(name), dict) for name in requests):
            return ask(requests, {"step": 1})
        return text(f"answered: {json.dumps(given)}")

    return run


def asks_name(context: Context, arguments: dict[str, Any]) -> Answer:
    name = content(answers(context).get("user_name"), "name")
    if not isinstance(name, str):
        return ask({"user_name": question("What is your name?", "name")})
    return text(f"Hello, {name}!")


def asks_with_state(context: Context, arguments: dict[str, Any]) -> Answer:
    state = context.request.params.get("requestState")
    if state is None:
        return ask({"confirm": question("Please confirm", "ok", "boolean")}, {"step": 1})
    verified(state)
    if "confirm" not in answers(context):
        return ask({"confirm": question("Please confirm", "ok", "boolean")}, {"step": 1})
    return text("state-ok")


def asks_twice(context: Context, arguments: dict[str, Any]) -> Answer:
    state, given = context.request.params.get("requestState"), answers(context)
    step = 0 if state is None else verified(state)["step"]
    if step == 0 or (step == 1 and "step1" not in given):
        return ask({"step1": question("Step 1: what is your name?", "name")}, {"step": 1})
    if step == 1 or "step2" not in given:
        return ask({"step2": question("Step 2: what is your favourite colour?", "color")}, {"step": 2})
    return text("all steps are complete")


def asks_what_the_client_can(context: Context, arguments: dict[str, Any]) -> Answer:
    if answers(context):
        return text("answered")
    possible = {
        "elicitation": ("user_name", question("What is your name?", "name")),
        "sampling": ("greeting", SAMPLING),
        "roots": ("client_roots", ROOTS),
    }
    requests = dict(entry for name, entry in possible.items() if name in context.capabilities)
    return ask(requests) if requests else text("the client can answer nothing")


# Tasks


class Job:
    """A task of the suite, in memory."""

    def __init__(self, requests: dict[str, Any]) -> None:
        self.id = os.urandom(8).hex()
        self.created = self.updated = int(time.time() * 1000)
        self.status = "working"
        self.requests = requests
        self.answers: dict[str, Any] = {}
        self.outcome: dict[str, Any] = {}
        self.changed = threading.Condition()

    def settle(self, status: str, **outcome: Any) -> None:
        with self.changed:
            if self.status not in {"completed", "failed", "cancelled"}:
                self.status, self.outcome, self.updated = status, outcome, int(time.time() * 1000)
                self.changed.notify_all()

    def brief(self) -> dict[str, Any]:
        return {
            "taskId": self.id,
            "status": self.status,
            "createdAt": iso_time(self.created),
            "lastUpdatedAt": iso_time(self.updated),
            "ttlMs": 600_000,
            "pollIntervalMs": 200,
        }

    def detailed(self) -> dict[str, Any]:
        asked = {"inputRequests": dict(self.requests)} if self.status == "input_required" else {}
        return {**self.brief(), **self.outcome, **asked}


class Jobs:
    """The tasks of the suite."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    def start(
        self, context: Context, work: Callable[[Job], dict[str, Any]], required: bool, requests: dict[str, Any]
    ) -> Answer:
        """Run work as a task, or at once for a client that knows no tasks."""
        if not context.has_extension(TASKS):
            if required:
                raise missing_capability({"extensions": {TASKS: {}}})
            return work(Job({}))
        job = Job(requests)
        self._jobs[job.id] = job

        def run() -> None:
            try:
                job.settle("completed", result=work(job))
            except Fault as fault:
                job.settle("failed", error=fault.error())

        threading.Thread(target=run, daemon=True).start()
        return {"resultType": "task", **job.brief()}

    def get(self, context: Context, task: str) -> dict[str, Any]:
        return self._jobs[task].detailed()

    def update(self, context: Context, task: str, responses: dict[str, Any]) -> None:
        job = self._jobs[task]
        with job.changed:
            for key in list(job.requests):
                if key in responses:
                    job.answers[key] = responses[key]
                    del job.requests[key]
            if not job.requests and job.status == "input_required":
                job.status = "working"
            job.changed.notify_all()

    def cancel(self, context: Context, task: str) -> None:
        self._jobs[task].settle("cancelled")

    def state(self, task: str) -> dict[str, Any]:
        return self._jobs[task].detailed()


def answered(job: Job) -> dict[str, Any]:
    """Wait until everything that a job asks for is answered."""
    with job.changed:
        if job.requests:
            job.status = "input_required"
            job.changed.notify_all()
        job.changed.wait_for(lambda: not job.requests or job.status == "cancelled", 30)
    return job.answers


def compute(arguments: dict[str, Any]) -> Callable[[Job], dict[str, Any]]:
    def work(job: Job) -> dict[str, Any]:
        seconds = float(arguments.get("seconds", 0))
        with job.changed:
            job.changed.wait_for(lambda: job.status == "cancelled", seconds)
        return text(f"computed {arguments.get('label', '')}")

    return work


def fail(job: Job) -> dict[str, Any]:
    return {**text("the job failed"), "isError": True}


def break_protocol(job: Job) -> dict[str, Any]:
    raise Fault(INTERNAL_ERROR, "the job broke the protocol")


def confirm(job: Job) -> dict[str, Any]:
    return text(f"answered: {json.dumps(answered(job))}")


def name_then_task(jobs: Jobs) -> Callable[[Context, dict[str, Any]], Answer]:
    def run(context: Context, arguments: dict[str, Any]) -> Answer:
        if not context.has_extension(TASKS):
            raise missing_capability({"extensions": {TASKS: {}}})
        given = answers(context)
        found = next((name for answer in given.values() for name in _texts(answer)), None)
        if found is None:
            return ask({"user_name": question("What is your name?", "name")}, {"step": 1})
        return jobs.start(context, lambda job: text(f"Hello, {found}!"), True, {})

    return run


def _texts(answer: object) -> list[str]:
    found = answer.get("content") if isinstance(answer, dict) and answer.get("action") == "accept" else None
    return [value for value in found.values() if isinstance(value, str)] if isinstance(found, dict) else []


# Resources


class FixtureResources:
    """The resources of the suite."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def list(self) -> Sequence[dict[str, Any]]:
        return [
            {"uri": "test://static-text", "name": "text", "description": "A text", "mimeType": "text/plain"},
            {"uri": "test://static-binary", "name": "image", "description": "An image", "mimeType": "image/png"},
            {"uri": "test://watched-resource", "name": "watched", "description": "A text", "mimeType": "text/plain"},
        ]

    def templates(self) -> Sequence[dict[str, Any]]:
        return [{"uriTemplate": "test://template/{id}/data", "name": "template", "mimeType": "application/json"}]

    def read(self, context: Context, uri: str) -> Sequence[dict[str, Any]]:
        if uri in {"test://static-text", "test://watched-resource"}:
            found = "This is the content of the static text resource."
            return [{"uri": uri, "mimeType": "text/plain", "text": found}]
        if uri == "test://static-binary":
            return [{"uri": uri, "mimeType": "image/png", "blob": PIXEL}]
        if uri.startswith("test://template/") and uri.endswith("/data"):
            id = uri.split("/")[3]
            data = json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})
            return [{"uri": uri, "mimeType": "application/json", "text": data}]
        raise LookupError(uri)

    def is_watchable(self, uri: str) -> bool:
        return uri == "test://watched-resource"

    def watch(
        self,
        context: Context,
        uris: Sequence[str],
        tasks: Sequence[str],
        changed: Callable[[str], None],
        task_changed: Callable[[dict[str, Any]], None],
        cancellation: Cancellation,
        ready: Callable[[], None],
    ) -> None:
        seen = {task: self._jobs.state(task)["status"] for task in tasks}
        ready()
        while not cancellation.cancelled:
            time.sleep(0.05)
            for task in tasks:
                state = self._jobs.state(task)
                if state["status"] != seen[task]:
                    seen[task] = state["status"]
                    task_changed(state)


def fixture_dispatcher() -> Dispatcher:
    """Return the dispatcher with everything that the suite asks for."""
    jobs = Jobs()

    def fixed(result: dict[str, Any]) -> Callable[[Context, dict[str, Any]], Answer]:
        return lambda context, arguments: dict(result)

    def job(
        work: Callable[[Job], dict[str, Any]], *asked: str, required: bool = False
    ) -> Callable[[Context, dict[str, Any]], Answer]:
        return lambda context, arguments: jobs.start(
            context, work, required, {name: question(f"Confirm {name}?", "confirm", "boolean") for name in asked}
        )

    name, header = {"name": {"type": "string"}}, {"region": {"type": "string", "x-mcp-header": "Region"}}
    audio = {"type": "audio", "data": SOUND, "mimeType": "audio/wav"}
    tools = [
        FixtureTool("test_simple_text", fixed(text("This is a simple text response for testing."))),
        FixtureTool("test_image_content", fixed({"content": [IMAGE]})),
        FixtureTool("test_audio_content", fixed({"content": [audio]})),
        FixtureTool("test_embedded_resource", fixed({"content": [EMBEDDED]})),
        FixtureTool(
            "test_multiple_content_types", fixed({"content": [*text("Several kinds:")["content"], IMAGE, EMBEDDED]})
        ),
        FixtureTool("test_error_handling", error),
        FixtureTool("test_tool_with_progress", progress, waits=True),
        FixtureTool("test_missing_capability", needs_sampling),
        FixtureTool("json_schema_2020_12_tool", fixed(text("valid")), schema=SCHEMA),
        FixtureTool("test_custom_header", lambda context, given: text(str(given.get("region"))), header),
        FixtureTool("test_input_required_result_elicitation", asks_name),
        FixtureTool("test_input_required_result_sampling", asks_for(capital_question=SAMPLING)),
        FixtureTool("test_input_required_result_list_roots", asks_for(client_roots=ROOTS)),
        FixtureTool("test_input_required_result_request_state", asks_with_state),
        FixtureTool("test_input_required_result_tampered_state", asks_with_state),
        FixtureTool(
            "test_input_required_result_multiple_inputs",
            asks_for(user_name=question("What is your name?", "name"), greeting=SAMPLING, client_roots=ROOTS),
        ),
        FixtureTool("test_input_required_result_multi_round", asks_twice),
        FixtureTool("test_input_required_result_capabilities", asks_what_the_client_can),
        FixtureTool("test_streaming_elicitation", asks_name),
        FixtureTool("test_logging_tool", fixed(text("nothing is logged"))),
        FixtureTool("greet", lambda context, given: text(f"Hello, {given.get('name')}!"), name),
        FixtureTool(
            "slow_compute",
            lambda context, given: jobs.start(context, compute(given), False, {}),
            {"seconds": {"type": "number"}, "label": {"type": "string"}},
        ),
        FixtureTool("failing_job", job(fail, required=True)),
        FixtureTool("protocol_error_job", job(break_protocol)),
        FixtureTool("confirm_delete", job(confirm, "confirm")),
        FixtureTool("multi_input", job(confirm, "first", "second")),
        FixtureTool("test_tool_with_task", name_then_task(jobs)),
    ]
    return Dispatcher(
        name="agentbus-fixtures",
        version="1",
        instructions="Fixtures of the conformance suite",
        tools=tools,
        resources=FixtureResources(jobs),
        tasks=jobs,
    )


def main(port: int) -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import Route

    async def identify(scope: Any) -> None:
        return None

    app = Starlette(routes=[Route("/mcp", MCPEndpoint(fixture_dispatcher(), identify))])
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
