"""The checkpointer: the checkpoints of a thread and the pending writes of its tasks are the items of one history.

The history of a thread has the kind ``langgraph`` and the name of the thread; the part of an item is the checkpoint
namespace. The key of a checkpoint is ``c/ID``, that of a write ``w/ID/TASK/INDEX``.
"""

from __future__ import annotations

import builtins
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, cast
from urllib.parse import quote

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from agentbus.errors import InvalidInput, VersionConflict
from agentbus.integrations.langgraph.caller import Adapter, AnyBus, Caller
from agentbus.records import HistoryItem, HistoryPut, HistoryWrite

KIND = "langgraph"
"""The kind of the histories."""
_CHECKPOINT, _WRITE = "c/", "w/"
_PARENT = "__parent__"
"""The metadata in which an item has the id of the checkpoint before; LangGraph reserves names with two underscores."""
_COUNTERS = "counters_since_delta_snapshot"
"""The metadata by which LangGraph marks a checkpoint without the values of these delta channels."""
_STRATEGIES = ("keep_latest", "delete")
_MAX_TOKEN = 200
_FEW = 10
_ATTEMPTS = 10
"""Attempts to prune a thread that is written at the same time."""


class _Stored(NamedTuple):
    """A checkpoint as it is stored, with its pending writes."""

    item: HistoryItem
    writes: list[HistoryItem]

    @property
    def id(self) -> str:
        return self.item.key.removeprefix(_CHECKPOINT)

    @property
    def parent(self) -> str | None:
        return self.item.meta.get(_PARENT)


class AgentBusSaver(Adapter, BaseCheckpointSaver[str]):
    """A checkpointer of LangGraph that stores on a bus. Any number of processes, threads and event loops can use one
    bus.

    ``bus`` is an open bus, asynchronous or synchronous, or the URL of one to open. A checkpoint, and the writes of a
    task, is one commit; a checkpoint of more bytes than ``max_snapshot`` of the bus is refused with SnapshotTooLarge.

    Reading a checkpoint makes objects of safe types only: those of the standard library, LangChain and LangGraph that
    LangGraph lists as such, and those in ``types``, classes or pairs of a module and a name. An object of another type
    is read as its plain data, and a warning is logged: what is written to the bus cannot run code here. ``serde`` is
    another serializer, which decides itself what it makes.

    >>> async with agentbus.connect() as bus:                                         # doctest: +SKIP
    ...     graph = builder.compile(checkpointer=AgentBusSaver(bus))
    ...     await graph.ainvoke(question, {"configurable": {"thread_id": "chat-7"}})
    >>> with AgentBusSaver(".agentbus") as saver:                                     # doctest: +SKIP
    ...     builder.compile(checkpointer=saver).invoke(question, config)
    """

    def __init__(
        self, bus: AnyBus, *, serde: SerializerProtocol | None = None, types: Iterable[type | tuple[str, str]] = ()
    ) -> None:
        allowed = _types(types)
        if serde is not None and allowed:
            raise InvalidInput(reason="types are those of the default serializer: give them to your serde instead")
        # Without a list, this serializer calls whatever a stored checkpoint names.
        super().__init__(serde=serde or JsonPlusSerializer(allowed_msgpack_modules=allowed))
        self._caller = Caller(bus)
        self._histories = self._caller.bus.histories

    # What LangGraph calls on threads

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that ``config`` names, or the latest of its thread; None if there is none."""
        return self._decode(self._caller.run(self._read, *_address(config), get_checkpoint_id(config)))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints of a thread, or of all threads, newest first."""
        for head in self._caller.run(self._find, config, filter, before, limit):
            found = self._decode(self._caller.run(self._complete, head))
            if found is not None:
                yield found

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, and return its config."""
        thread, namespace = _address(config)
        item = self._checkpoint(config, namespace, checkpoint, metadata)
        self._caller.run(self._histories.write, KIND, thread, [item])
        return _config(thread, namespace, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote to channels after a checkpoint. Repeating the call changes nothing."""
        thread, items = self._writes(config, writes, task_id, task_path)
        if items:
            self._caller.run(self._histories.write, KIND, thread, items)

    def delete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints and writes of a thread."""
        self._caller.run(self._histories.delete, KIND, str(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs and their writes, in all threads."""
        self._caller.run(self._delete_for_runs, run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to one that has none."""
        self._caller.run(self._histories.copy, KIND, str(source_thread_id), str(target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete old checkpoints of these threads: all but the latest of each namespace, or with ``delete`` all.

        The checkpoints that the delta channels of the latest one are rebuilt from are kept too.
        """
        self._caller.run(self._prune, thread_ids, strategy)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes to delta channels before a checkpoint, back to the last stored value of each."""
        return self._caller.run(self._delta_history, config, channels)

    # What it calls in coroutines

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that ``config`` names, or the latest of its thread; None if there is none."""
        return self._decode(await self._caller.wait(self._read, *_address(config), get_checkpoint_id(config)))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield the checkpoints of a thread, or of all threads, newest first."""
        for head in await self._caller.wait(self._find, config, filter, before, limit):
            found = self._decode(await self._caller.wait(self._complete, head))
            if found is not None:
                yield found

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, and return its config."""
        thread, namespace = _address(config)
        item = self._checkpoint(config, namespace, checkpoint, metadata)
        await self._caller.wait(self._histories.write, KIND, thread, [item])
        return _config(thread, namespace, checkpoint["id"])

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote to channels after a checkpoint. Repeating the call changes nothing."""
        thread, items = self._writes(config, writes, task_id, task_path)
        if items:
            await self._caller.wait(self._histories.write, KIND, thread, items)

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints and writes of a thread."""
        await self._caller.wait(self._histories.delete, KIND, str(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs and their writes, in all threads."""
        await self._caller.wait(self._delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to one that has none."""
        await self._caller.wait(self._histories.copy, KIND, str(source_thread_id), str(target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete old checkpoints of these threads, as ``prune`` does."""
        await self._caller.wait(self._prune, thread_ids, strategy)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes to delta channels before a checkpoint, back to the last stored value of each."""
        return await self._caller.wait(self._delta_history, config, channels)

    def get_next_version(self, current: str | int | None, channel: None) -> str:
        """Return the next version of a channel: a number, and a fraction by which forks of a thread differ."""
        number = 0 if current is None else current if isinstance(current, int) else int(current.partition(".")[0])
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311 - not a secret

    # Encoding

    def _checkpoint(
        self, config: RunnableConfig, namespace: str, checkpoint: Checkpoint, metadata: CheckpointMetadata
    ) -> HistoryPut:
        encoding, body = self.serde.dumps_typed(checkpoint)
        meta = cast("dict[str, Any]", get_checkpoint_metadata(config, metadata))
        parent = get_checkpoint_id(config)
        if parent:
            meta[_PARENT] = parent
        return HistoryPut(key=_CHECKPOINT + checkpoint["id"], body=body, part=namespace, encoding=encoding, meta=meta)

    def _writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task: str, path: str
    ) -> tuple[str, builtins.list[HistoryPut]]:
        thread, namespace = _address(config)
        prefix = f"{_writes_of(config['configurable']['checkpoint_id'])}{_token(task)}/"
        items: dict[str, HistoryPut] = {}
        for position, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, position)
            encoding, body = self.serde.dumps_typed(value)
            key = f"{prefix}{index}"
            # A write that is repeated is the same one; an error, an interrupt or a resume replaces the one before.
            items[key] = HistoryPut(
                key=key,
                body=body,
                part=namespace,
                encoding=encoding,
                meta={"task": task, "path": path, "index": index, "channel": channel},
                replace=index < 0,
            )
        return thread, [*items.values()]

    def _decode(self, stored: _Stored | None) -> CheckpointTuple | None:
        if stored is None:
            return None
        item, writes = stored
        meta = {name: value for name, value in item.meta.items() if name != _PARENT}
        return CheckpointTuple(
            config=_config(item.history, item.part, stored.id),
            checkpoint=self._value(item),
            metadata=cast("CheckpointMetadata", meta),
            parent_config=None if stored.parent is None else _config(item.history, item.part, stored.parent),
            pending_writes=[self._write(write) for write in writes],
        )

    def _write(self, item: HistoryItem) -> PendingWrite:
        return item.meta["task"], item.meta["channel"], self._value(item)

    def _value(self, item: HistoryItem) -> Any:
        return self.serde.loads_typed((item.encoding, item.body))

    # On the loop of the bus

    async def _read(self, thread: str, namespace: str, id: str | None) -> _Stored | None:
        """Read a checkpoint, the latest one without an id, with its writes."""
        item: HistoryItem | None
        if id is None:
            latest = await self._histories.items(
                KIND, thread, part=namespace, key_prefix=_CHECKPOINT, by="key", newest_first=True, limit=1
            )
            item = latest[0] if latest else None
        else:
            item = await self._histories.get(KIND, thread, _CHECKPOINT + id, part=namespace)
        if item is None:
            return None
        id = item.key.removeprefix(_CHECKPOINT)
        return _Stored(item, await self._writes_at(thread, namespace, id))

    async def _complete(self, head: HistoryItem) -> _Stored | None:
        return await self._read(head.history, head.part, head.key.removeprefix(_CHECKPOINT))

    async def _writes_at(
        self, thread: str, namespace: str, id: str, *, bodies: bool = True
    ) -> builtins.list[HistoryItem]:
        """Return the writes after a checkpoint, in the order in which LangGraph applies them."""
        # A few are read without a thread; most tasks write few channels.
        for limit in (_FEW, None):
            found = await self._histories.items(
                KIND, thread, part=namespace, key_prefix=_writes_of(id), by="key", limit=limit, bodies=bodies
            )
            if len(found) != limit:
                break
        return sorted(found, key=_order)

    async def _find(
        self,
        config: RunnableConfig | None,
        filter: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> builtins.list[HistoryItem]:
        """Return the checkpoints that match, newest first, without their bodies."""
        if limit is not None and limit <= 0:
            return []
        wanted = config["configurable"] if config else {}
        id = wanted.get("checkpoint_id")
        last = get_checkpoint_id(before) if before else None
        # JSON of the store and Python agree on the equality of texts.
        where = {name: value for name, value in (filter or {}).items() if isinstance(value, str)}
        rest = {name: value for name, value in (filter or {}).items() if name not in where}
        found = await self._histories.items(
            KIND,
            str(wanted["thread_id"]) if "thread_id" in wanted else None,
            part=wanted.get("checkpoint_ns"),
            key=None if not id else _CHECKPOINT + id,
            key_prefix=_CHECKPOINT,
            before_key=None if not last else _CHECKPOINT + last,
            where=where or None,
            by="key",
            newest_first=True,
            limit=None if rest else limit,
            bodies=False,
        )
        return [item for item in found if all(item.meta.get(name) == value for name, value in rest.items())][:limit]

    async def _delete_for_runs(self, runs: Sequence[str]) -> None:
        threads: defaultdict[str, list[HistoryItem]] = defaultdict(list)
        for run in _names(runs, "run_ids"):
            for item in await self._histories.items(KIND, key_prefix=_CHECKPOINT, where={"run_id": run}, bodies=False):
                threads[item.history].append(item)
        deletes = [(thread, await self._with_writes(thread, found)) for thread, found in threads.items()]
        await self._histories.write_all([HistoryWrite(kind=KIND, name=name, delete=keys) for name, keys in deletes])

    async def _with_writes(self, thread: str, items: Sequence[HistoryItem]) -> builtins.list[tuple[str, str]]:
        """Return the parts and keys of checkpoints and of their writes."""
        keys = [(item.part, item.key) for item in items]
        prefixes = {(item.part, _writes_of(item.key.removeprefix(_CHECKPOINT))) for item in items}
        for part in {item.part for item in items}:
            writes = await self._histories.items(KIND, thread, part=part, key_prefix=_WRITE, by="key", bodies=False)
            keys += [(part, one.key) for one in writes if (part, one.key[: one.key.index("/", 2) + 1]) in prefixes]
        return keys

    async def _prune(self, threads: Sequence[str], strategy: str) -> None:
        if strategy not in _STRATEGIES:
            raise InvalidInput(reason=f"unknown strategy {strategy!r}: it is {' or '.join(_STRATEGIES)}")
        for thread in _names(threads, "thread_ids"):
            if strategy == "delete":
                await self._histories.delete(KIND, thread)
                continue
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    await self._keep_latest(thread)
                    break
                except VersionConflict:
                    # A run wrote a checkpoint meanwhile, perhaps after one that was to be deleted.
                    if attempt == _ATTEMPTS:
                        raise

    async def _keep_latest(self, thread: str) -> None:
        history = await self._histories.find(KIND, thread)
        if history is None:
            return
        namespaces: defaultdict[str, dict[str, HistoryItem]] = defaultdict(dict)
        items = await self._histories.items(KIND, thread, key_prefix=_CHECKPOINT, by="key", bodies=False)
        for item in items:
            namespaces[item.part][item.key.removeprefix(_CHECKPOINT)] = item
        delete: builtins.list[HistoryItem] = []
        orphans: builtins.list[HistoryPut] = []
        for checkpoints in namespaces.values():
            kept = await self._chain(checkpoints, max(checkpoints))
            delete += [item for id, item in checkpoints.items() if id not in kept]
            first = checkpoints[kept[-1]]
            if first.meta.get(_PARENT) in checkpoints:
                orphans += await self._without_parent(first)
        if delete:
            keys = await self._with_writes(thread, delete)
            await self._histories.write(KIND, thread, orphans, delete=keys, if_version=history.version)

    async def _chain(self, checkpoints: Mapping[str, HistoryItem], id: str) -> builtins.list[str]:
        """Return a checkpoint and those before it that its delta channels are rebuilt from."""
        chain = [id]
        missing: set[str] = set(checkpoints[id].meta.get(_COUNTERS) or ())
        while missing:
            item = checkpoints[chain[-1]]
            whole = await self._histories.get(KIND, item.history, item.key, part=item.part)
            if whole is not None:
                value = self._value(whole)
                # A channel without a version was never written: there is nothing to rebuild.
                missing &= set(value["channel_versions"])
                missing -= set(value["channel_values"])
            parent: str | None = item.meta.get(_PARENT)
            if not missing or parent is None or parent not in checkpoints or parent in chain:
                break
            chain.append(parent)
        return chain

    async def _without_parent(self, item: HistoryItem) -> builtins.list[HistoryPut]:
        whole = await self._histories.get(KIND, item.history, item.key, part=item.part)
        if whole is None:
            return []
        meta = {name: value for name, value in whole.meta.items() if name != _PARENT}
        return [HistoryPut(key=whole.key, body=whole.body, part=whole.part, encoding=whole.encoding, meta=meta)]

    async def _delta_history(
        self, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        thread, namespace = _address(config)
        # Newest first, as the walk finds them.
        writes: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        visited: set[str] = set()
        target = await self._read(thread, namespace, get_checkpoint_id(config)) if channels else None
        id = None if target is None else target.parent
        while id is not None and id not in visited and len(seeds) < len(writes):
            visited.add(id)
            stored = await self._read(thread, namespace, id)
            if stored is None:
                break
            for write in reversed(stored.writes):
                channel = write.meta["channel"]
                if channel in writes and channel not in seeds:
                    writes[channel].append(self._write(write))
            values = self._value(stored.item)["channel_values"]
            seeds |= {channel: values[channel] for channel in writes if channel in values and channel not in seeds}
            id = stored.parent
        found: dict[str, DeltaChannelHistory] = {}
        for channel, newest_first in writes.items():
            found[channel] = {"writes": newest_first[::-1]}
            if channel in seeds:
                found[channel]["seed"] = seeds[channel]
        return found


def _address(config: RunnableConfig) -> tuple[str, str]:
    """Return the thread and the namespace of a config."""
    configurable = config["configurable"]
    return str(configurable["thread_id"]), str(configurable.get("checkpoint_ns") or "")


def _config(thread: str, namespace: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": id}}


def _writes_of(id: str) -> str:
    """Return the prefix of the keys of the writes after a checkpoint."""
    return f"{_WRITE}{_token(id)}/"


def _token(text: str) -> str:
    """Return a text for keys, short and without slashes: of ids of LangGraph the text itself."""
    quoted = quote(text, safe="")
    return quoted if len(quoted) <= _MAX_TOKEN else f"#{sha256(text.encode()).hexdigest()}"


def _order(write: HistoryItem) -> tuple[str, str, int]:
    meta = write.meta
    return cast("tuple[str, str, int]", writes_sort_key(meta["path"], meta["task"], meta["index"]))


def _types(given: Iterable[type | tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the modules and names of types."""
    found: list[tuple[str, str]] = []
    for one in given:
        pair = (one.__module__, one.__name__) if isinstance(one, type) else one
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise InvalidInput(reason=f"types are classes or pairs of a module and a name, not {one!r}")
        found.append(pair)
    return found


def _names(given: Sequence[str], what: str) -> list[str]:
    if isinstance(given, str):
        raise InvalidInput(reason=f"{what} is a sequence of ids, not a text")
    return [str(one) for one in given]
