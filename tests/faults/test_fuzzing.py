"""Any value sent through the API or the command line is received unchanged or refused by a named error."""

import asyncio
import io
import json
import os
import random
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import agentbus
from agentbus.cli.main import main
from agentbus.errors import AgentBusError
from tests.faults import fuzzing
from tests.faults.rows import integrity, value
from tests.support.figures import Figure, Scale

SEED = 20_261_119
AT_ONCE = 50


@pytest.mark.slow
@pytest.mark.fault(21)
async def test_any_payload_is_received_unchanged_or_refused_by_name(
    tmp_path: Path, figure: Figure, scale: Scale
) -> None:
    chance = random.Random(seed := scale.seed(SEED))
    refused: Counter[str] = Counter()
    wrong: list[str] = []
    exact = 0
    async with (
        agentbus.connect(tmp_path, max_payload=fuzzing.LIMIT, beat_every=3600) as bus,
        bus.agent("a", type="worker") as agent,
    ):
        for number in range(0, times := scale(1000, 8000, 100_000), AT_ONCE):
            values = [fuzzing.value(chance) for _ in range(AT_ONCE)]
            outcomes = await asyncio.gather(
                *(_sent(bus, agent, value, f"f-{number + n}") for n, value in enumerate(values)), return_exceptions=True
            )
            for sent, outcome in zip(values, outcomes, strict=True):
                if isinstance(outcome, AgentBusError):
                    refused[outcome.code] += 1
                elif isinstance(outcome, BaseException):
                    wrong.append(f"seed {seed}, {number}: {type(outcome).__name__} for {sent!r:.200}")
                elif fuzzing.same(sent, outcome) or _has_other_form(sent):
                    exact += 1
                else:
                    wrong.append(f"seed {seed}, {number}: {sent!r:.200} became {outcome!r:.200}")
    lost = exact - value(tmp_path, "SELECT count(*) FROM messages")
    figure("API", inputs=times, exact=exact, refused=refused.total(), lost=lost, changed=len(wrong))
    assert not wrong, wrong[:3]
    assert lost == 0
    assert min(exact, refused.total()) > times // 5
    assert integrity(tmp_path) == "ok"


async def _sent(bus: agentbus.Bus, agent: agentbus.Agent, payload: Any, message_id: str) -> Any:
    await agent.send("a", "note", payload, message_id=message_id)
    record = await bus.messages.get(message_id)
    assert record is not None
    return record.payload


def _has_other_form(sent: Any) -> bool:
    """Return True if part of the value has no JSON form and came back as its substitute."""
    if isinstance(sent, list):
        return any(map(_has_other_form, sent))
    if isinstance(sent, dict):
        return any(not isinstance(key, str) for key in sent) or any(map(_has_other_form, sent.values()))
    return not isinstance(sent, str | int | float | bool | None)


class Terminal:
    """The command line in this process, on a bus of its own: thousands of processes would take too long."""

    def __init__(self, directory: Path) -> None:
        self._environment = {"AGENTBUS_URL": str(directory), "AGENTBUS_AGENT": "a", "AGENTBUS_MAX_PAYLOAD": ""}

    def run(self, *words: str) -> tuple[int, Any]:
        """Its status, and the JSON that it printed."""
        out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
        with patch.dict(os.environ, self._environment), redirect_stdout(out), redirect_stderr(err):
            try:
                place = words.index("--") if "--" in words else len(words)
                code = main([*words[:place], "--json", *words[place:]])
            except SystemExit as left:
                code = left.code  # type: ignore[assignment]
        out.flush()
        printed = out.buffer.getvalue()
        return code, json.loads(printed) if printed else None


@pytest.mark.slow
@pytest.mark.fault(21)
def test_any_typed_payload_is_received_unchanged_or_refused_by_name(short: Path, figure: Figure, scale: Scale) -> None:
    chance = random.Random(seed := scale.seed(SEED + 1))
    terminal = Terminal(short / "bus")
    assert terminal.run("init")[0] == 0
    assert terminal.run("register", "a", "--type", "worker")[0] == 0
    refused: Counter[str] = Counter()
    wrong: list[str] = []
    exact = 0
    for number in range(times := scale(100, 2000, 20_000)):
        typed = fuzzing.written(chance)
        how = chance.choice(("state", "send", "word"))
        try:
            if how == "word":
                code, found = terminal.run(*(fuzzing.text(chance) for _ in range(chance.randrange(1, 4))))
            elif how == "state":
                code, found = terminal.run("state", "set", "k", "--", typed)
            else:
                code, found = terminal.run("send", "a", "note", "--id", f"t-{number}", "--", typed)
            if code == 0 and how != "word":
                kept = _kept(terminal, how, f"t-{number}")
                if fuzzing.same(kept, json.loads(typed)):
                    exact += 1
                else:
                    wrong.append(f"seed {seed}, {number}: {how} {typed!r:.200} became {kept!r:.200}")
            elif code:
                refused[found["error"]["code"] if found else "usage"] += 1
        except Exception as error:
            wrong.append(f"seed {seed}, {number}: {how} {typed!r:.200}: {type(error).__name__}: {error!s:.200}")
    figure("command line", inputs=times, exact=exact, refused=refused.total(), changed=len(wrong))
    assert not wrong, wrong[:3]
    assert min(exact, refused.total()) > times // 20
    assert integrity(short / "bus") == "ok"


def _kept(terminal: Terminal, how: str, message_id: str) -> Any:
    if how == "state":
        return terminal.run("state", "get", "k")[1]["data"]["value"]
    return terminal.run("messages", "show", message_id)[1]["data"]["payload"]
