"""The formatter of structured logs: one valid object a line whatever is logged, without secrets and payloads."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from agentbus.core import logs
from agentbus.core.logs import JSONFormatter
from agentbus.errors import LeaseLost
from tests.support.cases import each


def formatted(message: str, *arguments: object, **options: Any) -> dict[str, Any]:
    """Log through a logger, as a user of the library would."""
    lines: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    logger = logging.Logger("agentbus.test")
    handler = Collector()
    handler.setFormatter(JSONFormatter())
    logger.addHandler(handler)
    logger.warning(message, *arguments, **options)
    (line,) = lines
    assert len(line.splitlines()) == 1
    found: dict[str, Any] = json.loads(line)
    return found


def test_an_error_of_the_bus_has_its_code_and_what_it_is_about() -> None:
    error = LeaseLost(message_id="m-1", status="acked", holder="b", payload={"secret": 1})
    for found in (formatted("renew: %s", error), formatted("renew", exc_info=error)):
        assert found["code"] == "lease_lost"
        assert found["fields"] == {"message_id": "m-1", "status": "acked", "holder": "b"}
    assert found["level"] == "warning"
    assert list(found)[:4] == ["time", "level", "logger", "message"]


def test_extras_are_fields_but_no_secrets_and_no_payloads() -> None:
    extra = {
        "task": "build-1", "attempt": 2, "auto": True, "size": 2**70, "none": None, "api_key": "k", "Token": "t",
        "payload": "p", "body": {"x": 1}, "raw": b"x", "long": "x" * 5000, "url": "postgresql://ada:hunter2@db/x",
    }  # fmt: skip
    found = formatted("Authorization: Bearer abc.def, token ab_0123456789 at %s", extra["url"], extra=extra)
    fields = found["fields"]
    assert (fields["task"], fields["attempt"], fields["auto"], fields["size"]) == ("build-1", 2, True, str(2**70))
    assert len(fields["long"]) == 1001
    assert fields.keys() == {"task", "attempt", "auto", "size", "long", "url"}
    for secret in ("abc.def", "0123456789", "hunter2"):
        assert secret not in json.dumps(found)


@each("text", [
    "postgresql://db/bus?user=ada&password=hunter2&sslmode=require",
    "host=db password=hunter2 dbname=bus",
    "host=db password = 'hunter2 hunter2' dbname=bus",
    "{'host': 'db', 'password': 'hunter2', 'name': 'bus'}",
    '{"host": "db", "api_key": "hunter2", "name": "bus"}',
    "host db Authorization: Basic aHVudGVyMjpodW50ZXIy, bus",
    "host db whsec_hunter2/hunter2+hunter2= bus",
])  # fmt: skip
def test_secrets_are_masked_and_nothing_else(text: str) -> None:
    found = formatted("%s", text, extra={"note": text})
    for shown in (found["message"], found["fields"]["note"]):
        assert not [secret for secret in ("hunter2", "aHVudGVy") if secret in shown], shown
        assert "…" in shown
        assert ("db" in shown, "bus" in shown or "sslmode=require" in shown) == (True, True)
    plain = "basic tests: max_tokens=5, token 3 of 4; the password is wrong"
    assert formatted(plain)["message"] == plain


class Rude:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("a\nb\r\u2028\x85\0", ()),
        ("%s", ("\ud800",)),
        ("%d", ("x",)),
        ("%s", (Rude(),)),
        ("%s", (10**5000,)),
        ("x" * 50_000, ()),
    ],
)
def test_whatever_is_logged_is_one_line(message: str, arguments: tuple[object, ...]) -> None:
    assert len(formatted(message, *arguments)["message"]) <= 10_001


def test_values_without_a_text_do_not_lose_the_record() -> None:
    found = formatted(10**5000, extra={"n": 10**5000, "code": Rude(), "task": "build-1"})  # type: ignore[arg-type]
    assert found["message"].startswith("int without a text")
    assert found["fields"]["n"].startswith("int without a text")
    assert (found["code"], found["fields"]["task"]) == ("Rude without a text: RuntimeError: no text", "build-1")


def test_an_exception_has_its_traceback_and_trace_ids_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "trace_ids", lambda: ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"))
    try:
        raise ValueError("at postgresql://ada:hunter2@db")
    except ValueError:
        found = formatted("failed", exc_info=sys.exc_info())
    assert "test_logs.py" in found["exception"]
    assert "hunter2" not in found["exception"]
    assert (found["trace_id"], found["span_id"]) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    monkeypatch.setattr(logs, "trace_ids", lambda: 1 / 0)
    assert "trace_id" not in formatted("failed")
