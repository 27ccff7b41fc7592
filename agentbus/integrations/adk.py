"""Sessions of Google's Agent Development Kit on a bus.

Each session is a history of kind ``adk`` named ``app/user/session``, with its events and its state as parts. The state
of a user is the history ``app/user``, that of an app the history ``app``. Install the kit with
``pip install '.[adk]'`` in the checkout.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from copy import deepcopy
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakValueDictionary

import anyio
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.platform import time as platform_time
from google.adk.platform import uuid as platform_uuid
from google.adk.sessions import BaseSessionService, Session, State
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
from pydantic_core import to_jsonable_python

from agentbus.core.validation import MAX_HISTORY_TEXT
from agentbus.errors import HistoryConflict
from agentbus.integrations._histories import BusOrUrl, HistoryAdapter, encode, join, list_all
from agentbus.records import HistoryPut, HistoryWrite

if TYPE_CHECKING:
    from agentbus.records import History, HistoryItem

KIND = "adk"
EVENTS = "events"
STATE = "state"
_HASHED = "sha256:"
_STALE = "another process has changed session {!r} since it was loaded: get it again, then append the event"


class AgentBusSessionService(HistoryAdapter, BaseSessionService):
    """A session service of the Agent Development Kit: sessions, their events and state as histories of a bus.

    An event and the state that it changes, of the session, the user and the app, are one commit. As with the kit's
    database service, appending to a session that another process has changed raises ``StaleSessionError``.

    >>> async with agentbus.connect() as bus:                                         # doctest: +SKIP
    ...     runner = Runner(app_name="shop", agent=agent, session_service=AgentBusSessionService(bus))
    """

    def __init__(self, bus: BusOrUrl) -> None:
        super().__init__(bus)
        # Tasks of this process that share a session object append one after the other, each to the version before.
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """Create a session; without an id it gets a new one.

        >>> session = await service.create_session(app_name="shop", user_id="ada", state={"user:name": "Ada"})
        ... # doctest: +SKIP
        """
        session_id = _stripped(session_id) or platform_uuid.new_uuid()
        own, shared = _changes(app_name, user_id, state or {})
        meta = {
            "app": app_name,
            "user": user_id,
            "session": session_id,
            # A session that is deleted and created again is another one.
            "incarnation": uuid4().hex,
            "last_update_time": platform_time.get_time(),
        }
        made = HistoryWrite(
            kind=KIND, name=join(app_name, user_id, session_id), puts=_puts(own), meta=meta, if_version=0
        )
        try:
            history, *_ = await self._histories.write_all([made, *shared])
        except HistoryConflict:
            raise AlreadyExistsError(f"Session with id {session_id} already exists.") from None
        return _session(history, await self._shared_state(app_name, user_id) | deepcopy(own), [])

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session with its events, or only those that ``config`` selects; None if there is no such session.

        >>> await service.get_session(app_name="shop", user_id="ada", session_id="s-1")   # doctest: +SKIP
        """
        name = join(app_name, user_id, _stripped(session_id))
        found = await self._histories.find(KIND, name)
        while found is not None:
            events = await self._events(name, config or GetSessionConfig())
            state = await self._shared_state(app_name, user_id) | await self._state(name)
            again = await self._histories.find(KIND, name)
            if again is not None and _marker(again) == _marker(found):
                return _session(found, state, events)
            # It was changed between these reads.
            found = again
        return None

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the sessions of a user, or of all users of an app, without events, the last changed one last.

        >>> (await service.list_sessions(app_name="shop", user_id="ada")).sessions    # doctest: +SKIP
        """
        words = [app_name] if user_id is None else [app_name, user_id]
        found = await list_all(self._histories, KIND, f"{join(*words)}/", {"app": app_name})
        found = [history for history in found if "session" in history.meta]
        shared = {user: await self._shared_state(app_name, user) for user in {one.meta["user"] for one in found}}
        sessions = [
            _session(one, deepcopy(shared[one.meta["user"]]) | await self._state(one.name), []) for one in found
        ]
        sessions.sort(key=lambda session: (session.last_update_time, session.user_id, session.id))
        return ListSessionsResponse(sessions=sessions)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session with its events. The state of its user and app remains.

        >>> await service.delete_session(app_name="shop", user_id="ada", session_id="s-1")   # doctest: +SKIP
        """
        await self._histories.delete(KIND, join(app_name, user_id, _stripped(session_id)))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state of a user, without the prefix ``user:``.

        >>> await service.get_user_state(app_name="shop", user_id="ada")              # doctest: +SKIP
        {'name': 'Ada'}
        """
        return await self._state(join(app_name, user_id))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append an event to a session, on the bus and in ``session``. An event that is stored already is not appended
        again.

        >>> await service.append_event(session, Event(author="user"))                 # doctest: +SKIP
        """
        if event.partial:
            return event
        name = join(session.app_name, session.user_id, session.id)
        async with self._lock(name):
            found = await self._histories.find(KIND, name)
            if found is None:
                raise SessionNotFoundError(f"Session {session.id} not found.")
            self._apply_temp_state(session, event)
            event = self._trim_temp_delta_state(event)
            body = event.model_dump_json(exclude_none=True).encode()
            stored = await self._histories.get(KIND, name, _key(event.id), part=EVENTS)
            if stored is not None and stored.body == body:
                return event
            if await self._is_stale(session, found):
                raise StaleSessionError(_STALE.format(session.id))
            own, shared = _changes(session.app_name, session.user_id, event.actions.state_delta)
            meta = {"author": event.author, "timestamp": event.timestamp, "invocation": event.invocation_id}
            # Of two different events with one id both are stored.
            put = HistoryPut(part=EVENTS, key=_key(event.id) if stored is None else None, body=body, meta=meta)
            change = {**found.meta, "last_update_time": event.timestamp}
            write = HistoryWrite(kind=KIND, name=name, puts=[put, *_puts(own)], meta=change, if_version=found.version)
            try:
                history, *_ = await self._histories.write_all([write, *shared])
            except HistoryConflict:
                raise StaleSessionError(_STALE.format(session.id)) from None
            session.last_update_time = event.timestamp
            session._storage_update_marker = _marker(history)
        return self._commit_event_to_session(session, event)

    def _lock(self, name: str) -> AbstractAsyncContextManager[None]:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = anyio.Lock()
        return lock

    async def _is_stale(self, session: Session, found: History) -> bool:
        """Return True if the session was changed since it was loaded. One that was not loaded from a bus has no marker:
        then its last event must be the last one on the bus, unless the session on the bus is older."""
        if session._storage_update_marker is not None:
            return bool(session._storage_update_marker != _marker(found))
        if found.meta["last_update_time"] <= session.last_update_time:
            return False
        last = await self._histories.items(KIND, found.name, part=EVENTS, newest_first=True, limit=1)
        return [_event(item).id for item in last] != [event.id for event in session.events[-1:]]

    async def _events(self, name: str, config: GetSessionConfig) -> list[Event]:
        number, since = config.num_recent_events, config.after_timestamp
        if number == 0:
            return []
        if since is None:
            found = await self._histories.items(KIND, name, part=EVENTS, newest_first=True, limit=number)
            return [_event(item) for item in reversed(found)]
        rows = await self._histories.items(KIND, name, part=EVENTS, bodies=False)
        wanted = [row.number for row in rows if row.meta["timestamp"] >= since][-(number or len(rows)) :]
        if not wanted:
            return []
        found = await self._histories.items(KIND, name, part=EVENTS, after=wanted[0] - 1)
        numbers = frozenset(wanted)
        return [_event(item) for item in found if item.number in numbers]

    async def _shared_state(self, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state of an app and a user, with the prefixes that it has in a session."""
        app, user = await self._state(join(app_name)), await self._state(join(app_name, user_id))
        return {State.APP_PREFIX + key: value for key, value in app.items()} | {
            State.USER_PREFIX + key: value for key, value in user.items()
        }

    async def _state(self, name: str) -> dict[str, Any]:
        items = await self._histories.items(KIND, name, part=STATE, by="key")
        return {_text(item): json.loads(item.body) for item in items}


def _changes(app_name: str, user_id: str, delta: dict[str, Any]) -> tuple[dict[str, Any], list[HistoryWrite]]:
    """Return the changes of the state of a session, and those of the state of its app and user, as JSON values."""
    app: dict[str, Any] = {}
    user: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for key, given in delta.items():
        value = to_jsonable_python(given, fallback=str)
        if key.startswith(State.APP_PREFIX):
            app[key.removeprefix(State.APP_PREFIX)] = value
        elif key.startswith(State.USER_PREFIX):
            user[key.removeprefix(State.USER_PREFIX)] = value
        elif not key.startswith(State.TEMP_PREFIX):
            own[key] = value
    shared = []
    if app:
        shared.append(HistoryWrite(kind=KIND, name=join(app_name), puts=_puts(app), meta={"app": app_name}))
    if user:
        meta = {"app": app_name, "user": user_id}
        shared.append(HistoryWrite(kind=KIND, name=join(app_name, user_id), puts=_puts(user), meta=meta))
    return own, shared


def _puts(values: dict[str, Any]) -> list[HistoryPut]:
    """Return the items of state entries: one for each key, so that a change is written without reading the rest."""
    puts = []
    for key, value in values.items():
        stored = _key(key)
        # As JSON, which escapes what the metadata of an item may not contain.
        meta = {} if stored == key else {"key": json.dumps(key)}
        puts.append(HistoryPut(part=STATE, key=stored, body=encode(value), meta=meta))
    return puts


def _key(text: str) -> str:
    """Return the key of an item: the text itself, or its hash if the bus does not permit it as a key or it looks like
    one."""
    data = text.encode(errors="surrogatepass")
    permitted = (
        0 < len(data) <= MAX_HISTORY_TEXT
        and b"\0" not in data
        and not any("\ud800" <= char <= "\udfff" for char in text)
        and not (text.isdecimal() and len(text) == 20)
    )
    if permitted and not text.startswith(_HASHED):
        return text
    return f"{_HASHED}{hashlib.sha256(data).hexdigest()}"


def _text(item: HistoryItem) -> str:
    """Return the text whose key an item has."""
    return str(json.loads(item.meta["key"])) if "key" in item.meta else item.key


def _session(history: History, state: dict[str, Any], events: Iterable[Event]) -> Session:
    session = Session(
        app_name=history.meta["app"],
        user_id=history.meta["user"],
        id=history.meta["session"],
        state=state,
        events=list(events),
        last_update_time=history.meta["last_update_time"],
    )
    session._storage_update_marker = _marker(history)
    return session


def _marker(history: History) -> str:
    """Return the text that identifies what is stored of a session: every write changes it."""
    return f"{history.meta['incarnation']} {history.version}"


def _event(item: HistoryItem) -> Event:
    return Event.model_validate_json(item.body)


def _stripped(session_id: str | None) -> str:
    return (session_id or "").strip()
