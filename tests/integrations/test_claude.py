"""Transcripts of the Claude Agent SDK on a bus: its own conformance suite and functions, kill -9, and the data."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk", reason="claude-agent-sdk is not installed: run make integrations")

from claude_agent_sdk import (
    InMemorySessionStore,
    delete_session_via_store,
    fork_session_via_store,
    get_session_messages_from_store,
    list_sessions_from_store,
    list_subagents_from_store,
    project_key_for_directory,
    rename_session_via_store,
)
from claude_agent_sdk.testing import run_session_store_conformance

from agentbus import Bus
from agentbus.integrations.claude import AgentBusSessionStore
from tests.conftest import Engine
from tests.examples.test_examples import run
from tests.integrations.sessions import append_and_kill, copied, exported

KEY: Any = {"project_key": "project", "session_id": "session"}
SUBAGENT: Any = {**KEY, "subpath": "subagents/agent-1"}
SESSION = "6a0e8a52-3a3f-4f0c-9d0c-0d1c6a3f7b11"


class Tenant:
    """A store for one contract of the suite: its projects have names of their own."""

    def __init__(self, store: AgentBusSessionStore, name: str) -> None:
        self._store = store
        self._name = name

    def _own(self, key: Any) -> Any:
        return {**key, "project_key": f"{self._name}/{key['project_key']}"}

    async def append(self, key: Any, entries: Any) -> None:
        await self._store.append(self._own(key), entries)

    async def load(self, key: Any) -> Any:
        return await self._store.load(self._own(key))

    async def list_sessions(self, project_key: str) -> Any:
        return await self._store.list_sessions(f"{self._name}/{project_key}")

    async def list_session_summaries(self, project_key: str) -> Any:
        return await self._store.list_session_summaries(f"{self._name}/{project_key}")

    async def delete(self, key: Any) -> None:
        await self._store.delete(self._own(key))

    async def list_subkeys(self, key: Any) -> Any:
        return await self._store.list_subkeys(self._own(key))


def entry(number: int, **more: Any) -> Any:
    return {"type": "user", "uuid": f"u-{number}", "timestamp": f"2026-01-01T00:00:{number:02d}.000Z", **more}


def message(role: str, text: str, uuid: str, parent: str | None) -> Any:
    return {
        "type": role,
        "uuid": uuid,
        "parentUuid": parent,
        "sessionId": SESSION,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "message": {"role": role, "content": text},
    }


async def test_it_fulfils_the_contracts_of_the_sdk(bus: Bus) -> None:
    names = itertools.count()
    store = AgentBusSessionStore(bus)
    await run_session_store_conformance(lambda: Tenant(store, f"tenant-{next(names)}"))
    # One store for each contract, and one that the suite asks for its methods.
    assert next(names) == 14 + 1


@pytest.mark.one_engine
async def test_the_functions_of_the_sdk_work_with_it_as_with_their_own_store(bus: Bus, tmp_path: Path) -> None:
    answers = []
    for store in (AgentBusSessionStore(bus), InMemorySessionStore()):
        key: Any = {"project_key": project_key_for_directory(str(tmp_path)), "session_id": SESSION}
        first, second = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
        await store.append(key, [message("user", "plan the trip", first, None)])
        await store.append(key, [message("assistant", "by train", second, first)])
        await store.append({**key, "subpath": "subagents/agent-1"}, [message("user", "find trains", first, None)])
        await rename_session_via_store(store, SESSION, "Trip to Oslo", directory=str(tmp_path))
        fork = await fork_session_via_store(store, SESSION, directory=str(tmp_path), title="Trip to Bergen")
        listed = await list_sessions_from_store(store, directory=str(tmp_path))
        read = await get_session_messages_from_store(store, SESSION, directory=str(tmp_path))
        agents = await list_subagents_from_store(store, SESSION, directory=str(tmp_path))
        await delete_session_via_store(store, SESSION, directory=str(tmp_path))
        left = await list_sessions_from_store(store, directory=str(tmp_path))
        answers.append(
            (
                sorted((one.summary, one.first_prompt, one.created_at) for one in listed),
                [(one.type, one.message) for one in read],
                agents,
                [one.session_id == fork.session_id for one in left],
            )
        )
    assert answers[0] == answers[1]
    assert [summary for summary, *_ in answers[0][0]] == ["Trip to Bergen", "Trip to Oslo"]


async def test_a_repeated_batch_is_stored_once_and_other_entries_every_time(bus: Bus) -> None:
    store = AgentBusSessionStore(bus)
    batch = [entry(1), {"type": "mode", "mode": "plan"}, entry(2)]
    await store.append(KEY, batch)
    await store.append(KEY, [*batch, entry(3)])
    assert await store.load(KEY) == [*batch, batch[1], entry(3)]
    # The same uuid in the transcript of a subagent is another entry.
    await store.append(SUBAGENT, [entry(1, sub=True)])
    assert await store.load(SUBAGENT) == [entry(1, sub=True)]


async def test_concurrent_batches_leave_one_summary_of_all(engine: Engine) -> None:
    """Each batch sets another field of the summary: none is lost."""
    fields = ("customTitle", "aiTitle", "lastPrompt", "summary", "gitBranch", "cwd")
    async with engine.connect() as bus, engine.connect() as other:
        stores = AgentBusSessionStore(bus), AgentBusSessionStore(other)
        batches = [[entry(number, **{field: field})] for number, field in enumerate(fields)]
        await asyncio.gather(*(stores[at % 2].append(KEY, batch) for at, batch in enumerate(batches)))
        loaded: Any = await stores[0].load(KEY)
        assert sorted(one["uuid"] for one in loaded) == [f"u-{number}" for number in range(len(fields))]
        (summary,) = await stores[0].list_session_summaries("project")
        (session,) = await stores[1].list_sessions("project")
        assert summary["mtime"] == session["mtime"]
        assert set(summary["data"].values()) >= set(fields)


@pytest.mark.one_engine
async def test_hostile_keys_and_entries_are_stored_as_they_are(bus: Bus) -> None:
    store = AgentBusSessionStore(bus)
    rng = random.Random(1)
    keys: list[Any] = [
        {"project_key": "a/b", "session_id": "c"},
        {"project_key": "a", "session_id": "b/c"},
        {"project_key": "a%2Fb", "session_id": "c"},
        {"project_key": "a", "session_id": "b", "subpath": "c"},
        {"project_key": "ä 👋_%*", "session_id": "c"},
    ]
    # The CLI cuts texts between surrogates; a summary longer than metadata may be is left to the SDK.
    batches = [[entry(number, lastPrompt=rng.choice(["\ud83d", "x" * 100_000]))] for number in range(len(keys))]
    for key, batch in zip(keys, batches, strict=True):
        await store.append(key, batch)
    assert [await store.load(key) for key in keys] == batches
    assert sorted(one["session_id"] for one in await store.list_sessions("a")) == ["b/c"]
    assert await store.list_subkeys({"project_key": "a", "session_id": "b"}) == ["c"]
    long: Any = {"project_key": "long", "session_id": "s"}
    await store.append(long, [entry(1, lastPrompt="x" * 100_000)])
    await store.append(long, [entry(2, lastPrompt="short")])
    assert await store.list_session_summaries("long") == []
    assert [one["session_id"] for one in await store.list_sessions("long")] == ["s"]


async def test_what_was_acknowledged_survives_kill_9(engine: Engine) -> None:
    async with engine.connect():
        pass
    stored = append_and_kill("claude", engine.url)
    async with engine.connect() as bus:
        store = AgentBusSessionStore(bus)
        entries: Any = await store.load(KEY)
        (summary,) = await store.list_session_summaries("project")
    assert [one["number"] for one in entries] == list(range(len(entries)))
    # The batch of two that was on its way is there as a whole or not at all.
    assert len(entries) in {stored, stored + 2}
    assert summary["data"] == {"is_sidechain": False}


async def test_the_transcripts_are_on_the_bus(engine: Engine) -> None:
    async with engine.connect() as bus:
        store = AgentBusSessionStore(bus)
        await store.append(KEY, [entry(1, customTitle="Trip")])
        await store.append(SUBAGENT, [entry(2)])
        (history,) = (await bus.histories.list("claude")).items
        assert (history.name, history.items) == ("project/session", 2)
        assert json.loads(history.meta["summary"])["custom_title"] == "Trip"
        items = await bus.histories.items("claude", "project/session")
        assert [(item.part, json.loads(item.body)["uuid"]) for item in items] == [
            ("", "u-1"),
            (SUBAGENT["subpath"], "u-2"),
        ]
        async with exported(bus) as other:
            assert await _transcripts(other) == await _transcripts(bus)
        before = await _transcripts(bus)
    async with copied(engine.url) as copy:
        assert await _transcripts(copy) == before


async def _transcripts(bus: Bus) -> Any:
    store = AgentBusSessionStore(bus)
    subkeys = await store.list_subkeys(KEY)
    summaries = [one["data"] for one in await store.list_session_summaries("project")]
    return await store.load(KEY), await store.load(SUBAGENT), subkeys, summaries


@pytest.mark.one_engine
async def test_the_real_claude_code_resumes_a_session_on_another_machine(engine: Engine) -> None:
    assert run("claude_resume.py", engine.url) == [
        "first machine: I know 1 question",
        "the files of the first machine are deleted",
        "second machine: I know 2 questions",
        "the bus has one history with 2 answers",
        "summary: What is a bus?",
    ]
