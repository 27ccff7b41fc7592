"""The HTTP API and the dashboard: ``agentbus serve``, extra ``agentbus[web]``.

``routes`` holds the one table of routes: method, path, permission and handler of each. Routing, the permission check,
the OpenAPI document and the test of all routes with all roles derive from it. A handler takes a ``Call`` and, if it
names them, a ``query`` and a ``body``; their Structs and the return type are the schema of the route.

A request passes these stations, each in one place:

1. ``server``: uvicorn, its limits and timeouts.
2. ``app``: Host, Origin, base path, route, body and query, ETag, problem responses, security headers.
3. ``access``: who calls (Bearer token, or the cookie of a browser), and whether that role may use the route.
4. ``handlers``: one module per subject; they call the ``api`` floor and contain no rule of their own.
5. ``streams``: server-sent events with ``Last-Event-ID``, heartbeats and a bound for slow clients.

Errors are problems (RFC 9457) made by ``agentbus.api.problems``. ``static/`` is the dashboard.
"""
