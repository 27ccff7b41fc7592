"""Payloads are held against the schemas of their types before they are sent, while nobody waits for the bus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from agentbus.aside import aside, breathe, has_loop
from agentbus.errors import InvalidPayload, InvalidSchema
from agentbus.operations.messages import Draft
from agentbus.vocabulary import Vocabulary

if TYPE_CHECKING:
    from anyio import CapacityLimiter

Problems: TypeAlias = dict[tuple[int, str], InvalidPayload | InvalidSchema]
"""Which drafts (by position) do not fit which schema, and why not."""

_LARGE = 16 * 1024
"""Characters of JSON that usually take some milliseconds to be checked: too long for the loop."""


class Checker:
    """Checks what one bus sends: on the loop, or on a thread where that takes long."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._thread: CapacityLimiter | None = None

    async def checked(self, drafts: Sequence[Draft]) -> tuple[tuple[Draft, ...], Problems]:
        """The drafts, each that fits the schema of its type with a note of that; and why the others do not.

        Those are no errors yet: somebody may have changed the schema since, and what was sent before under the same
        message_id is not held to it. The database has the last word.
        """
        schemas = self._vocabulary.schemas(drafts)
        result: list[Draft] = []
        problems: Problems = {}
        done = 0
        for item, draft in enumerate(drafts):
            schema = schemas[draft.type]
            if schema is not None and schema != draft.fits:
                done += len(draft.payload[0])
                problem = await self._misfit(draft, schema)
                if problem is None:
                    draft = msgspec.structs.replace(draft, fits=schema)
                else:
                    problems[item, schema] = problem
                if done > _LARGE:
                    await breathe()
                    done = 0
            result.append(draft)
        return tuple(result), problems

    async def _misfit(self, draft: Draft, schema: str) -> InvalidPayload | InvalidSchema | None:
        # Imported only here: the command line should start without it.
        from agentbus.schema import misfit

        payload = draft.payload[0]
        if len(payload) <= _LARGE:
            return misfit(draft.type, payload, schema)
        if self._thread is None and has_loop():
            from anyio import CapacityLimiter

            # One at a time: several at once would not be done sooner, only keep the loop waiting for its turn.
            self._thread = CapacityLimiter(1)
        return await aside(misfit, draft.type, payload, schema, abandon_on_cancel=True, limiter=self._thread)
