"""Both eras of the protocol: versions, capabilities, methods and their faults."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from agentbus.mcp.dispatcher import Connection, Dispatcher
from agentbus.mcp.protocol import (
    CAPABILITIES_KEY,
    HANDSHAKE,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    MODERN,
    RESOURCE_NOT_FOUND,
    SERVER_KEY,
    TASKS,
    UNSUPPORTED_VERSION,
    VERSION_KEY,
    Fault,
    Request,
)
from agentbus.mcp.server import INSTRUCTIONS, MCPServer
from agentbus.mcp.tools import TOOLS, bus_tools, tool_definitions
from agentbus.sync.bus import BlockingBus, open_bus
from tests.mcp.conftest import Client, content

MAX_TOKENS = 1000


def no_bus() -> BlockingBus:
    return open_bus("/nonexistent/agentbus")


@pytest.fixture
def dispatcher() -> Dispatcher:
    """A server without a bus: the protocol needs none."""
    return MCPServer(no_bus, prime=lambda: "# Instructions").dispatcher


def ask(dispatcher: Dispatcher, connection: Connection, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return dispatcher.answer(dispatcher.open(Request(1, method, params), connection)).result


def handshake(dispatcher: Dispatcher, version: str) -> tuple[Connection, dict[str, Any]]:
    connection = Connection()
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    return connection, ask(dispatcher, connection, "initialize", params)


def tokens(text: str) -> int:
    """Return at least as many tokens as a tokenizer finds: JSON has about four characters each, this counts fewer."""
    pieces = re.findall(r"[A-Za-z]+|\d+|[^\sA-Za-z\d]+", text)
    return sum(-(-len(piece) // (8 if piece[0].isalpha() else 3)) for piece in pieces)


def test_the_tools_cost_less_than_a_thousand_tokens(dispatcher: Dispatcher) -> None:
    listed = ask(dispatcher, handshake(dispatcher, HANDSHAKE[0])[0], "tools/list", {})
    assert [tool["name"] for tool in listed["tools"]] == list(TOOLS)
    assert tokens(msgspec.json.encode(listed).decode()) + tokens(INSTRUCTIONS) < MAX_TOKENS
    assert tokens(INSTRUCTIONS) < 120


def test_every_schema_says_what_its_tool_takes() -> None:
    for name, (description, properties, arguments, _) in tool_definitions().items():
        fields = {field.name: field for field in msgspec.structs.fields(arguments)}
        assert set(properties) == set(fields), name
        assert description
        for field, schema in properties.items():
            if "default" in schema:
                assert schema["default"] == fields[field].default, (name, field)


def test_fewer_tools_are_offered_on_request() -> None:
    server = MCPServer(no_bus, tools=["receive", "send"])
    listed = Client(server).ask("tools/list")
    assert [tool["name"] for tool in listed["tools"]] == ["send", "receive"]
    assert Client(server).fault("tools/call", name="join").code == INVALID_PARAMS
    assert len(bus_tools(server.buses)) == len(TOOLS)


@pytest.mark.parametrize("version", HANDSHAKE)
def test_a_handshake_settles_on_the_version_of_the_client(dispatcher: Dispatcher, version: str) -> None:
    connection, result = handshake(dispatcher, version)
    assert result["protocolVersion"] == version
    assert result["serverInfo"]["name"] == "agentbus"
    assert result["capabilities"] == {"tools": {}, "resources": {"subscribe": True}}
    # Results of that era have no fields of the later one.
    assert ask(dispatcher, connection, "tools/list", {}).keys() == {"tools"}
    assert ask(dispatcher, connection, "ping", {}) == {}


@pytest.mark.parametrize("version", ["2030-01-01", MODERN, "", "x"])
def test_a_handshake_with_an_unknown_version_answers_the_newest(dispatcher: Dispatcher, version: str) -> None:
    assert handshake(dispatcher, version)[1]["protocolVersion"] == "2025-11-25"


def test_a_request_without_a_handshake_states_its_protocol(dispatcher: Dispatcher) -> None:
    good = {VERSION_KEY: MODERN, CAPABILITIES_KEY: {}}
    found = ask(dispatcher, Connection(), "server/discover", {"_meta": good})
    assert found["supportedVersions"] == [MODERN, *HANDSHAKE]
    assert found["capabilities"]["extensions"] == {TASKS: {}}
    assert found["resultType"] == "complete"
    assert found["_meta"][SERVER_KEY]["name"] == "agentbus"
    for method in ("tools/list", "resources/list", "resources/templates/list"):
        result = ask(dispatcher, Connection(), method, {"_meta": good})
        assert result["ttlMs"] >= 0
        assert result["cacheScope"] in {"public", "private"}
    incomplete: list[dict[str, Any]] = [
        {}, {VERSION_KEY: MODERN}, {CAPABILITIES_KEY: {}}, {**good, VERSION_KEY: 7},
    ]  # fmt: skip
    for wrong in incomplete:
        with pytest.raises(Fault) as raised:
            ask(dispatcher, Connection(), "tools/list", {"_meta": wrong})
        assert (raised.value.code, raised.value.status, raised.value.id) == (INVALID_PARAMS, 400, 1)
    with pytest.raises(Fault) as raised:
        ask(dispatcher, Connection(), "tools/list", {"_meta": {**good, VERSION_KEY: "1900-01-01"}})
    assert raised.value.code == UNSUPPORTED_VERSION
    assert raised.value.data["supported"][0] == MODERN


def test_nothing_of_one_request_counts_for_the_next(dispatcher: Dispatcher) -> None:
    connection = Connection()
    ask(dispatcher, connection, "server/discover", {"_meta": {VERSION_KEY: MODERN, CAPABILITIES_KEY: {}}})
    with pytest.raises(Fault):
        ask(dispatcher, connection, "tools/list", {})


def test_methods_of_the_other_era_are_unknown(dispatcher: Dispatcher) -> None:
    client = Client(MCPServer(no_bus))
    for method in ("initialize", "ping", "resources/subscribe", "no/method", "prompts/list", "logging/setLevel"):
        fault = client.fault(method)
        assert (fault.code, fault.status) == (METHOD_NOT_FOUND, 404)
    connection, _ = handshake(dispatcher, "2025-06-18")
    for method in ("server/discover", "subscriptions/listen", "tasks/get", "no/method"):
        with pytest.raises(Fault) as raised:
            ask(dispatcher, connection, method, {})
        assert raised.value.code == METHOD_NOT_FOUND


def test_faults_of_requests_are_not_results_of_tools() -> None:
    client = Client(MCPServer(no_bus))
    for params in ({}, {"name": 7}, {"name": "nothing"}, {"name": "send", "arguments": [1]}):
        assert client.fault("tools/call", **params).code == INVALID_PARAMS
    assert client.fault("tools/list", cursor="x").code == INVALID_PARAMS
    assert client.fault("resources/read").code == INVALID_PARAMS
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        assert client.fault(method, taskId="t").code == MISSING_CAPABILITY


def test_without_a_bus_every_tool_answers_with_the_fix() -> None:
    client = Client(MCPServer(no_bus, prime=lambda: "# Instructions"))
    arguments: dict[str, dict[str, Any]] = {
        "join": {"name": "a"}, "send": {"to": "a", "payload": 1}, "receive": {}, "report": {},
        "settle": {"lease": "m-1#1", "outcome": "done"}, "state": {"action": "list"}, "task": {"action": "list"},
    }  # fmt: skip
    for tool in TOOLS:
        error = client.refused(tool, **arguments[tool])
        assert error["code"] == "no_bus"
        assert "agentbus init" in error["fix"]
    fault = client.fault("resources/read", uri="bus://status")
    assert (fault.code, fault.data["code"]) == (INTERNAL_ERROR, "no_bus")
    assert client.ask("resources/read", uri="bus://prime")["contents"][0]["text"] == "# Instructions"


def test_arguments_that_do_not_fit_are_explained_to_the_model() -> None:
    client = Client(MCPServer(no_bus))
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("join", {}),
        ("join", {"name": 7}),
        ("join", {"name": "a", "nmae": "b"}),
        ("send", {"to": "a"}),
        ("send", {"payload": 1, "to": "a", "priority": 10}),
        ("receive", {"wait": 56}),
        ("receive", {"wait": -1}),
        ("receive", {"max": "many"}),
        ("settle", {"lease": "m-1#1", "outcome": "maybe"}),
        ("state", {"action": "drop"}),
        ("report", {"progress": 101}),
        ("task", {"action": "approve"}),
    ]
    for tool, arguments in wrong:
        error = client.refused(tool, **arguments)
        assert error["code"] == "invalid_arguments", (tool, arguments, error)
        assert tool in error["message"]


def test_resources_that_do_not_exist_are_faults_of_each_era(client: Client) -> None:
    for uri in ("bus://nothing", "bus://inbox/nobody", "bus://task/none", "bus://inbox/", "file:///etc/passwd"):
        fault = client.fault("resources/read", uri=uri)
        assert (fault.code, fault.data) == (INVALID_PARAMS, {"uri": uri})
    connection, _ = handshake(client.server.dispatcher, "2025-11-25")
    with pytest.raises(Fault) as raised:
        ask(client.server.dispatcher, connection, "resources/read", {"uri": "bus://nothing"})
    assert raised.value.code == RESOURCE_NOT_FOUND


def test_what_a_client_may_not_do_is_refused_in_one_place() -> None:
    def permit(context: Any) -> None:
        if context.request.name == "send":
            raise Fault(-31001, "forbidden", status=403)

    client = Client(MCPServer(no_bus, permit=permit))
    assert client.fault("tools/call", name="send", arguments={}).status == 403
    assert content(client.ask("tools/call", name="join", arguments={"name": "a"}))["error"]["code"] == "no_bus"
