"""How drafts become messages, for agents with and without an event loop: checked, defined, sent, explained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from agentbus.drafting import OPTIONS, draft
from agentbus.errors import TypeChanging, UnknownRecipient, UnknownType
from agentbus.limits import check_options
from agentbus.operations import Actor, Operation, Part, UnitRequest, unit
from agentbus.operations.messages import Draft, Receipt, SendRequest, send
from agentbus.operations.vocabulary import Unchecked, define

if TYPE_CHECKING:
    from msgspec import Struct

    from agentbus.addresses import Address
    from agentbus.checking import Checker
    from agentbus.engine.interface import Engine
    from agentbus.vocabulary import Vocabulary

R = TypeVar("R")
T = TypeVar("T")

_MOST_ROUNDS = 5
"""How often something is checked and sent again because a schema was not known or was changed meanwhile."""


class Sender(ABC):
    """An agent as somebody who sends."""

    id: str
    actor: Actor
    session: str | None
    engine: Engine
    vocabulary: Vocabulary

    @property
    @abstractmethod
    def checker(self) -> Checker:
        """Knows which payloads fit their types."""

    def write(self, operation: Operation[R, T], request: R, **options: Any) -> Any:
        return self.engine.write(operation, request, **options)

    def draft(self, to: str | Address, type: str | Struct, payload: Any = None, **options: Any) -> Draft:
        check_options(options, OPTIONS)
        if options.get("session") is None:
            options["session"] = self.session
        return draft(to, type, payload, self.vocabulary, **options)

    async def send_drafts(self, *messages: Draft) -> list[Receipt]:
        request = SendRequest(self.actor, messages)
        if not self.vocabulary.concerns(messages):
            try:
                receipts: list[Receipt] = await self.write(send, request)
                return receipts
            except Unchecked as news:
                self.vocabulary.learn(news.schemas)
            except (UnknownRecipient, UnknownType) as error:
                raise await self._explained(error) from None
        return (await self.commit((Part(send, request),)))[-1]  # type: ignore[no-any-return]

    async def commit(self, parts: tuple[Part, ...]) -> list[Any]:
        """Commit these together, and with them the definition of every Struct that is sent for the first time.

        Payloads are checked before, against the schemas that are known here. Where the bus then turns out to have
        others, they are checked again, and sent again.
        """
        place = next((index for index, part in enumerate(parts) if part.operation is send), None)
        if place is None:
            return await self._write_all(parts)
        drafts = parts[place].request.drafts
        type = ""
        for _ in range(_MOST_ROUNDS):
            drafts, problems = await self.checker.checked(drafts)
            definitions = self.vocabulary.undefined(drafts, self.id)
            sending = (*(Part(define, one) for one in definitions), Part(send, SendRequest(self.actor, drafts)))
            try:
                results = await self._write_all((*parts[:place], *sending, *parts[place + 1 :]))
            except Unchecked as news:
                type = news.type
                problem = problems.get((news.item, news.schemas[type]))
                if problem is not None:
                    raise problem.__class__(**problem.facts, item=news.item) from None
                self.vocabulary.learn(news.schemas)
                continue
            self.vocabulary.remember(definitions)
            return results
        raise TypeChanging(type=type, rounds=_MOST_ROUNDS)

    async def _write_all(self, parts: tuple[Part, ...]) -> list[Any]:
        try:
            if len(parts) == 1:
                # One operation is all or nothing by itself.
                return [await self.write(parts[0].operation, parts[0].request)]
            request = UnitRequest(parts)
            results: list[Any] = await self.write(unit, request, durable=request.durable)
        except (UnknownRecipient, UnknownType) as error:
            raise await self._explained(error) from None
        return results

    async def _explained(self, error: UnknownRecipient | UnknownType) -> UnknownRecipient | UnknownType:
        # Imported only here, where something went wrong: the command line should start without it.
        from agentbus.explaining import explained

        return await explained(self.engine, error)
