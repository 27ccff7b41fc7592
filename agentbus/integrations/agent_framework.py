"""Checkpoints of workflows of the Microsoft Agent Framework on a bus.

The checkpoints of a workflow are a history of kind ``agent-framework`` named by the workflow. Install the framework
with ``pip install '.[agent-framework]'`` in the checkout.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from agent_framework import WorkflowCheckpoint, WorkflowCheckpointException
from agent_framework._workflows._checkpoint_encoding import decode_checkpoint_value, encode_checkpoint_value

from agentbus.integrations._histories import BusOrUrl, HistoryAdapter, encode
from agentbus.records import HistoryPut

if TYPE_CHECKING:
    from agentbus.records import HistoryItem

KIND = "agent-framework"
_NEVER = datetime.min.replace(tzinfo=UTC)

log = logging.getLogger("agentbus.integrations")


class AgentBusCheckpointStorage(HistoryAdapter):
    """A ``CheckpointStorage`` of the Agent Framework: checkpoints as histories of a bus, shared by any number of
    processes. A saved checkpoint survives ``kill -9`` and power loss.

    >>> async with agentbus.connect() as bus:                                         # doctest: +SKIP
    ...     storage = AgentBusCheckpointStorage(bus)
    ...     await workflow.run("Hello", checkpoint_storage=storage)
    """

    def __init__(self, bus: BusOrUrl, *, allowed_checkpoint_types: Iterable[str] = ()) -> None:
        """``allowed_checkpoint_types`` are further types that a checkpoint may contain, as ``"module:qualname"``, with
        the meaning that they have for the ``FileCheckpointStorage`` of the framework."""
        super().__init__(bus)
        self._allowed = frozenset(allowed_checkpoint_types)

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a checkpoint, and return its id. Raise WorkflowCheckpointException if it could not be loaded again.

        >>> await storage.save(WorkflowCheckpoint(workflow_name="build", graph_signature_hash="1f"))   # doctest: +SKIP
        '7c4b…'
        """
        try:
            value = encode_checkpoint_value(checkpoint.to_dict())
            decode_checkpoint_value(value, allowed_types=self._allowed)
            body = encode(value)
        except WorkflowCheckpointException:
            raise
        except Exception as error:
            raise WorkflowCheckpointException(
                f"checkpoint {checkpoint.checkpoint_id} cannot be encoded: {error}"
            ) from error
        meta = {
            "timestamp": checkpoint.timestamp,
            "iteration": checkpoint.iteration_count,
            "previous": checkpoint.previous_checkpoint_id,
        }
        put = HistoryPut(key=checkpoint.checkpoint_id, body=body, meta=meta)
        await self._histories.write(KIND, checkpoint.workflow_name, [put])
        return str(checkpoint.checkpoint_id)

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return a checkpoint. Raise WorkflowCheckpointException if there is none with this id, or it cannot be
        decoded.

        >>> (await storage.load(checkpoint_id)).iteration_count                       # doctest: +SKIP
        3
        """
        found = await self._histories.items(KIND, key=checkpoint_id, by="key", limit=1)
        if not found:
            raise WorkflowCheckpointException(f"no checkpoint found with ID {checkpoint_id}")
        return self._decode(found[0])

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow, in the order in which they were first saved. As in the framework's own
        storage, one that cannot be decoded is left out with a warning.

        >>> [one.iteration_count for one in await storage.list_checkpoints(workflow_name="build")]   # doctest: +SKIP
        [0, 1, 2]
        """
        found = [self._decode_or_warn(item) for item in await self._histories.items(KIND, workflow_name)]
        return [checkpoint for checkpoint in found if checkpoint is not None]

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint; return False if there is none with this id.

        >>> await storage.delete(checkpoint_id)                                       # doctest: +SKIP
        True
        """
        found = await self._histories.items(KIND, key=checkpoint_id, by="key", limit=1, bodies=False)
        return bool(found and await self._histories.delete(KIND, found[0].history, keys=[checkpoint_id]))

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the checkpoint of a workflow with the latest timestamp, or None.

        >>> (await storage.get_latest(workflow_name="build")).iteration_count         # doctest: +SKIP
        2
        """
        items = await self._histories.items(KIND, workflow_name, bodies=False)
        # The sort is stable: of two with one time the one that was saved first is the latest.
        for item in sorted(items, key=_moment, reverse=True):
            found = await self._histories.get(KIND, workflow_name, item.key)
            # Another process may have deleted it meanwhile.
            checkpoint = None if found is None else self._decode_or_warn(found)
            if checkpoint is not None:
                return checkpoint
        return None

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the ids of the checkpoints of a workflow, in the order in which they were first saved.

        >>> await storage.list_checkpoint_ids(workflow_name="build")                  # doctest: +SKIP
        ['7c4b…', '9d10…']
        """
        return [item.key for item in await self._histories.items(KIND, workflow_name, bodies=False)]

    def _decode(self, item: HistoryItem) -> WorkflowCheckpoint:
        try:
            value = decode_checkpoint_value(json.loads(item.body), allowed_types=self._allowed)
            return WorkflowCheckpoint.from_dict(value)
        except WorkflowCheckpointException:
            raise
        except Exception as error:
            raise WorkflowCheckpointException(f"checkpoint {item.key} cannot be decoded: {error}") from error

    def _decode_or_warn(self, item: HistoryItem) -> WorkflowCheckpoint | None:
        try:
            return self._decode(item)
        except WorkflowCheckpointException as error:
            log.warning("checkpoint %r of workflow %r is left out: %s", item.key, item.history, error)
            return None


def _moment(item: HistoryItem) -> datetime:
    """Return the time of a checkpoint: in UTC if it has no zone, and before all others if it cannot be parsed."""
    try:
        moment = datetime.fromisoformat(item.meta["timestamp"])
    except (KeyError, TypeError, ValueError):
        return _NEVER
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
