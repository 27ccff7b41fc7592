"""Transcripts of the Claude Agent SDK on a bus: a session can be resumed by any process that reaches the bus.

Each session is a history of kind ``claude`` named ``project_key/session_id``. The transcripts of its subagents are
parts of it, and its summary is in the metadata. Install the SDK with ``pip install '.[claude]'`` in the checkout.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from agentbus.errors import HistoryConflict
from agentbus.integrations._histories import HistoryAdapter, encode, join, list_all
from agentbus.records import HistoryPut

if TYPE_CHECKING:
    from claude_agent_sdk import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStoreEntry,
        SessionStoreListEntry,
        SessionSummaryEntry,
    )

    from agentbus.records import History

KIND = "claude"
_MAX_SUMMARY = 48 * 1024
"""Characters of a summary that fits the metadata of a history. A longer one the SDK derives from the transcript."""
_MAX_UUID = 500


class AgentBusSessionStore(HistoryAdapter):
    """A ``SessionStore`` of the Claude Agent SDK: transcripts as histories of a bus.

    An entry that has a ``uuid`` is stored once, however often its batch is repeated. A batch and the summary that it
    changes are one commit.

    >>> async with agentbus.connect() as bus:                                         # doctest: +SKIP
    ...     options = ClaudeAgentOptions(session_store=AgentBusSessionStore(bus), resume=session_id)
    """

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Add a batch of entries to a transcript, in one commit.

        >>> await store.append({"project_key": "app", "session_id": "s-1"}, [{"type": "user"}])   # doctest: +SKIP
        """
        if not entries:
            return
        part = key.get("subpath") or ""
        puts = [_put(cast("dict[str, Any]", entry), part) for entry in entries]
        if part:
            await self._histories.write(KIND, _name(key), puts)
            return
        while True:
            found = await self._histories.find(KIND, _name(key))
            meta = _meta(key, found, entries)
            try:
                version = 0 if found is None else found.version
                await self._histories.write(KIND, _name(key), puts, meta=meta, if_version=version)
            except HistoryConflict:
                # Another process has added entries: the summary is folded again, from theirs.
                continue
            return

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return the entries of a transcript in the order in which they were added, or None if there are none.

        >>> await store.load({"project_key": "app", "session_id": "s-1"})             # doctest: +SKIP
        [{'type': 'user'}]
        """
        # The index of parts and keys finds a transcript among those of many subagents.
        items = await self._histories.items(KIND, _name(key), part=key.get("subpath") or "", by="key")
        items.sort(key=lambda item: item.number)
        return [json.loads(item.body) for item in items] or None

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the sessions of a project, with the times of their last changes.

        >>> await store.list_sessions("app")                                          # doctest: +SKIP
        [{'session_id': 's-1', 'mtime': 1780000000000}]
        """
        return [
            {"session_id": history.meta["session_id"], "mtime": history.updated}
            for history in await self._sessions(project_key)
        ]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the summaries of the sessions of a project.

        >>> await store.list_session_summaries("app")                                 # doctest: +SKIP
        [{'session_id': 's-1', 'mtime': 1780000000000, 'data': {'is_sidechain': False}}]
        """
        found = map(_summary, await self._sessions(project_key))
        return [summary for summary in found if summary is not None]

    async def delete(self, key: SessionKey) -> None:
        """Delete a session with the transcripts of its subagents; with a ``subpath`` only that transcript.

        >>> await store.delete({"project_key": "app", "session_id": "s-1"})           # doctest: +SKIP
        """
        await self._histories.delete(KIND, _name(key), part=key.get("subpath"))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the ``subpath`` of each transcript of a subagent.

        >>> await store.list_subkeys({"project_key": "app", "session_id": "s-1"})     # doctest: +SKIP
        ['subagents/agent-1']
        """
        items = await self._histories.items(KIND, _name(key), bodies=False)
        return list(dict.fromkeys(item.part for item in items if item.part))

    async def _sessions(self, project_key: str) -> list[History]:
        # A history without metadata has transcripts of subagents only.
        return await list_all(self._histories, KIND, f"{join(project_key)}/", {"project_key": project_key})


def _name(key: SessionKey | SessionListSubkeysKey) -> str:
    return join(key["project_key"], key["session_id"])


def _put(entry: dict[str, Any], part: str) -> HistoryPut:
    uuid = entry.get("uuid")
    known = isinstance(uuid, str) and 0 < len(uuid) <= _MAX_UUID
    return HistoryPut(key=f"uuid:{uuid}" if known else None, part=part, body=encode(entry), replace=False)


def _meta(key: SessionKey, found: History | None, entries: list[SessionStoreEntry]) -> dict[str, Any]:
    """Return the metadata of a session after ``entries``."""
    from claude_agent_sdk import fold_session_summary

    meta = {"project_key": key["project_key"], "session_id": key["session_id"]}
    before = None if found is None else _summary(found)
    if before is None and found is not None and found.meta:
        # It was too long: the SDK reads the transcript instead.
        return meta
    # As text in ASCII, since the CLI cuts texts between surrogates.
    data = json.dumps(fold_session_summary(before, key, entries)["data"], separators=(",", ":"))
    return {**meta, "summary": data} if len(data) <= _MAX_SUMMARY else meta


def _summary(history: History) -> SessionSummaryEntry | None:
    data = history.meta.get("summary")
    if data is None:
        return None
    return {"session_id": history.meta["session_id"], "mtime": history.updated, "data": json.loads(data)}
