"""The OpenAPI 3.1 document of the API, made of the table of routes, and a readable page of it."""

from __future__ import annotations

from html import escape
from typing import Any

import msgspec

from agentbus import __version__
from agentbus.api.problems import HTTPProblem
from agentbus.web.access import Permission
from agentbus.web.routes import PREFIX, ROUTES, Route

_PROBLEMS = {
    "400": "The request is malformed.",
    "401": "No token, or one that is not valid.",
    "403": "The role of the token does not permit this, or the server is read-only.",
    "404": "The path or the body names something that does not exist.",
    "409": "The request is valid, but not in the present state.",
    "413": "The body or its payload is too large.",
    "415": "The body is not JSON.",
    "422": "A parameter or a field of the body is invalid.",
    "429": "A quota was exceeded, or the token has too many streams.",
    "503": "The store is not available; try again after Retry-After seconds.",
}
_ROLES = {
    Permission.PUBLIC: "no token",
    Permission.READ: "any role",
    Permission.AGENT: "the agent itself, or operate",
    Permission.OPERATE: "operate",
    Permission.DECIDE: "operate; never an agent",
}
NAME = {"type": "string", "pattern": "^[A-Za-z0-9_:@-][A-Za-z0-9._:@/-]{0,127}$"}
"""The name in a path; one of dots only is given in the query."""
_KEYED = frozenset({"agents_send", "agents_request", "agents_reply", "messages_send", "tasks_start_task"})
"""Operations that take an Idempotency-Key."""


def document(base_path: str = "") -> dict[str, Any]:
    """Return the OpenAPI document."""
    kinds = [HTTPProblem, *(kind for route in ROUTES for kind in (route.query, route.body, route.response) if kind)]
    unique = list({str(kind): kind for kind in kinds}.values())
    schemas, components = msgspec.json.schema_components(unique, ref_template="#/components/schemas/{name}")
    by_kind = {str(kind): schema for kind, schema in zip(unique, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        path = "/" + "/".join(segment.replace(":int", "") for segment in route.segments)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, by_kind, components)
    queries = {str(by_kind[str(route.query)].get("$ref", "")).rpartition("/")[2] for route in ROUTES if route.query}
    made = {
        "openapi": "3.1.0",
        "info": {
            "title": "agentbus",
            "version": __version__,
            "description": "The HTTP API of an agentbus. Times are wall-clock milliseconds, durations are seconds. "
            "A name that contains / is written with %2F; the names . and .. are given in the query, with ~ in the "
            "path.",
        },
        "servers": [{"url": f"{base_path}{PREFIX}"}],
        "security": [{"token": []}, {"cookie": []}],
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in ROUTES)],
        "paths": paths,
        "components": {
            "schemas": {name: schema for name, schema in components.items() if name not in queries},
            "responses": {
                f"Problem{status}": {
                    "description": text,
                    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/HTTPProblem"}}},
                }
                for status, text in _PROBLEMS.items()
            },
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "agentbus-ID"},
            },
        },
    }
    # As a client reads it: lists, where defaults are tuples.
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(made))
    return found


def _operation(route: Route, by_kind: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "tags": [route.tag],
        "summary": route.description.partition(". ")[0].rstrip("."),
        "description": f"{route.description} Role: {_ROLES[route.permission]}.",
        "parameters": _parameters(route, by_kind, components),
        "responses": _responses(route, by_kind),
        "x-permission": route.permission.value,
    }
    if route.permission is Permission.PUBLIC:
        operation["security"] = []
    if route.body is not None:
        operation["requestBody"] = {
            "required": not route.body_is_optional,
            "content": {"application/json": {"schema": by_kind[str(route.body)]}},
        }
    return operation


def _parameters(route: Route, by_kind: dict[str, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "integer", "minimum": 0, "maximum": 2**53} if number else NAME,
        }
        for name, number in route.parameters.items()
    ]
    if route.query is not None:
        schema = components[by_kind[str(route.query)]["$ref"].rpartition("/")[2]]
        required = schema.get("required", ())
        for name, one in schema["properties"].items():
            found.append({"name": name, "in": "query", "required": name in required, "schema": _without_null(one)})
    if route.changes and route.permission is Permission.PUBLIC:
        found.append(
            {"name": "X-Agentbus", "in": "header", "required": True, "schema": {"type": "string", "const": "1"}}
        )
    if route.name in _KEYED:
        key = {"type": "string", "pattern": "^[A-Za-z0-9._:@/-]{1,128}$"}
        found.append({"name": "Idempotency-Key", "in": "header", "required": False, "schema": key})
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter: one that is left out is null."""
    kinds = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name != "anyOf" and (name, value) != ("default", None)}
    return {**rest, **kinds[0]} if len(kinds) == 1 else schema


def _responses(route: Route, by_kind: dict[str, Any]) -> dict[str, Any]:
    if route.streams:
        content = {"text/event-stream": {"schema": {"type": "string"}}}
    elif route.response is None:
        content = {media: {"schema": {"type": "string"}} for media in route.media}
    else:
        content = {"application/json": {"schema": by_kind[str(route.response)]}}
    found: dict[str, Any] = {str(route.status): {"description": "Done and committed.", "content": content}}
    if not route.changes and not route.streams:
        found["304"] = {"description": "The client has the present state."}
    found |= {status: {"$ref": f"#/components/responses/Problem{status}"} for status in _PROBLEMS}
    return found


STYLE = b"""\
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code { font: 13px/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .25rem .5rem; border-top: 1px solid #8884; }
td:first-child { white-space: nowrap; }
"""


def page(document: dict[str, Any]) -> str:
    """Return a readable page of the document: the routes by subject, with their parameters and fields."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>agentbus HTTP API</title>",
        '<meta name=viewport content="width=device-width"><link rel=stylesheet href="api/style.css">',
        f"<h1>agentbus {escape(document['info']['version'])}: HTTP API</h1>",
        f"<p>{escape(document['info']['description'])}</p>",
        '<p>As a document: <a href="api/v1/openapi.json">OpenAPI 3.1</a>.</p>',
    ]
    schemas = document["components"]["schemas"]
    for tag in document["tags"]:
        parts.append(f"<h2>{escape(tag['name'])}</h2><table>")
        for path, methods in document["paths"].items():
            for method, one in methods.items():
                if one["tags"] == [tag["name"]]:
                    parts.append(_row(method, path, one, schemas))
        parts.append("</table>")
    return "\n".join([*parts, "</html>"])


def _row(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    names = [one["name"] for one in operation["parameters"] if one["in"] == "query"]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    fields = schemas.get(str(body.get("$ref", "")).rpartition("/")[2], {})
    required = set(fields.get("required", ()))
    listed = [name if name in required else f"{name}?" for name in fields.get("properties", ())]
    more = "".join(
        f"<br>{what}: <code>{escape(', '.join(found))}</code>"
        for what, found in (("query", names), ("body", listed))
        if found
    )
    return (
        f"<tr><td><code>{method.upper()}</code><td><code>{escape(PREFIX + path)}</code>"
        f"<br>{escape(operation['description'])}{more}"
    )
