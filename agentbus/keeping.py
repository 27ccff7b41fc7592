"""What agents keep, with and without an event loop: drafts of their checkpoints and documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.errors import Misuse
from agentbus.operations import Actor

if TYPE_CHECKING:
    from agentbus import checkpoints, document


class Keeper:
    """An agent as somebody who keeps things for later. Imports only what it is asked for: the command line starts
    without it."""

    id: str
    actor: Actor
    session: str | None
    max_snapshot: int

    def draft_checkpoint(self, name: str, snapshot: Any, **options: Any) -> checkpoints.Draft:
        from agentbus.checkpoints import draft
        from agentbus.operations.checkpoints import Owner

        owner = Owner("agent", self.id)
        return draft(owner, name, snapshot, self.max_snapshot, actor=self.actor, session=self.session, **options)

    def draft_document(self, name: str, value: Any, keep: int, session: str | None = None) -> document.Draft:
        """A document of the agent's session, or of another one."""
        from agentbus.document import draft

        session = session or self.session
        if session is None:
            raise Misuse(reason=f"{self.id} belongs to no session, so that it has no documents")
        return draft(session, name, value, self.max_snapshot, author=self.id, keep=keep, actor=self.actor)
