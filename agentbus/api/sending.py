"""Send messages, with and without an event loop: check the arguments, check payloads against their schemas, commit.

An agent with an event loop (``api.agent``) and a visiting agent (``sync.agent``) both call these functions. Imports
here are part of the start of every command, so asyncio and what few calls need is imported where it is used.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Required, TypeAlias, TypedDict, TypeVar, cast

import msgspec

from agentbus import core
from agentbus.core.addresses import Address, parse_address, parse_text
from agentbus.core.codec import encode
from agentbus.core.threads import has_loop, run_in_thread, yield_to_loop
from agentbus.core.validation import (
    MAX_ATTEMPTS,
    Priority,
    check_headers,
    check_message_id,
    check_name,
    check_options,
    check_range,
    check_seconds,
)
from agentbus.errors import (
    InvalidPayload,
    InvalidSchema,
    Misuse,
    RequestDied,
    RequestTimedOut,
    TypeChanging,
    UnknownRecipient,
    UnknownType,
)
from agentbus.operations.protocol import BUS, Actor, Operation, Part, UnitRequest, reply_channel, unit
from agentbus.operations.rows import Draft, MessageRow
from agentbus.operations.send import Receipt, SendRequest, send
from agentbus.operations.types import Unchecked, define

if TYPE_CHECKING:
    from anyio import CapacityLimiter

    from agentbus.api.message import Message
    from agentbus.api.types import Vocabulary
    from agentbus.core.trace_context import Propagation
    from agentbus.engine.interface import Engine
    from agentbus.records import TaskMessage

R = TypeVar("R")
T = TypeVar("T")

FIRST_RETRY = 1.0
"""Seconds before the second attempt, at most."""
MAX_RETRY = 300.0
"""Seconds between two attempts, at most."""
_MAX_ROUNDS = 5
"""Times that payloads are checked and sent again because a schema was unknown here or has changed."""
_GENERATED_LENGTH = 26
"""Characters of a correlation that ``new_correlation`` returns."""
_LARGE = 16 * 1024
"""Characters of JSON that take milliseconds to check: too long for the event loop."""


class SendOptions(TypedDict, total=False):
    """Options of every method that sends a message."""

    priority: int
    """From 0 to 9, 9 is the most urgent (default 5)."""
    delay: float | None
    """Seconds before it can be received."""
    ttl: float | None
    """Time to live in seconds, from when it can be received."""
    message_id: str | None
    """Its id: the same id with the same content is sent once, also after a crash or a cancellation."""
    max_attempts: int
    """Deliveries (default 5), after which it is a dead letter."""
    correlation: str | None
    """A name that it shares with the messages it belongs to."""
    session: str | None
    """Its session, by default that of the agent."""
    headers: dict[str, str] | None
    """Metadata such as a trace context, text to text, at most 4 KiB as JSON. They are not part of the content that a
    ``message_id`` stands for."""


OPTIONS = tuple(SendOptions.__annotations__)


class OutgoingMessage(SendOptions, total=False):
    """The arguments of ``Agent.send`` as a dict, for ``Agent.send_many``.

    >>> jobs: list[OutgoingMessage] = [{"to": "b", "type": "note", "payload": n} for n in range(5)]
    """

    to: Required[str | Address]
    type: Required[str | msgspec.Struct]
    payload: Any


Outgoing: TypeAlias = (
    OutgoingMessage | tuple[str | Address, str | msgspec.Struct] | tuple[str | Address, str, Any] | list[Any]
)
"""A message for ``Agent.send_many``."""


class Sender(Protocol):
    """The attributes of an agent that sending needs."""

    @property
    def id(self) -> str: ...
    @property
    def _actor(self) -> Actor: ...
    @property
    def session(self) -> str | None: ...
    @property
    def _engine(self) -> Engine: ...
    @property
    def _vocabulary(self) -> Vocabulary: ...
    @property
    def _checker(self) -> PayloadChecker: ...
    @property
    def _replies(self) -> int: ...

    _waiting: int

    def _write(self, operation: Operation[R, T], request: R, *, durable: bool | None = None) -> Awaitable[T]: ...


class _Reply(Protocol):
    @property
    def sender(self) -> str: ...
    @property
    def payload(self) -> Any: ...


M = TypeVar("M", bound=_Reply)


def draft(
    to: str | Address,
    type: str | msgspec.Struct,
    payload: Any,
    vocabulary: Vocabulary,
    priority: int = Priority.NORMAL.value,
    delay: float | None = None,
    ttl: float | None = None,
    message_id: str | None = None,
    max_attempts: int = MAX_ATTEMPTS,
    correlation: str | None = None,
    session: str | None = None,
    headers: dict[str, str] | None = None,
) -> Draft:
    """Return a checked draft. A Struct in place of the type is the payload as well."""
    if type.__class__ is str and not isinstance(payload, msgspec.Struct):
        name, content, defines = check_name(type, "message type"), encode(payload, vocabulary.limit), None
    else:
        name, content, defines = vocabulary.encode_struct(type, payload)
    return Draft(
        parse_text(to) if to.__class__ is str else parse_address(to),
        name,
        content,
        check_range(priority, "priority", 0, 9),
        check_range(max_attempts, "max_attempts", 1, 1000),
        0 if delay is None else check_seconds(delay, "delay", zero=True),
        None if ttl is None else check_seconds(ttl, "ttl"),
        None if message_id is None else check_message_id(message_id),
        None if correlation is None else check_name(correlation, "correlation"),
        None,
        None if session is None else check_name(session, "session"),
        False,
        None,
        defines,
        None if headers is None else check_headers(headers),
        None if correlation is None else 0,
    )


def draft_from(
    agent: Sender, to: str | Address, type: str | msgspec.Struct, payload: Any, options: SendOptions
) -> Draft:
    """Return a checked draft of this agent, by default in its session. An unknown option is InvalidInput."""
    if options:
        check_options(options, OPTIONS)
    if options.get("session") is None:
        options["session"] = agent.session
    return draft(to, type, payload, agent._vocabulary, **options)


def send_drafts(agent: Sender, *drafts: Draft) -> Coroutine[Any, Any, list[Receipt]]:
    """Commit these messages together."""
    return _send(agent, drafts) if core.tracer is None else _send_traced(agent, drafts, core.tracer)


async def _send_traced(agent: Sender, drafts: tuple[Draft, ...], tracer: Propagation) -> list[Receipt]:
    with tracer.send(drafts) as span:
        receipts = await _send(agent, span.drafts)
        span.receipts = receipts
        return receipts


async def _send(agent: Sender, drafts: tuple[Draft, ...]) -> list[Receipt]:
    request = SendRequest(agent._actor, drafts)
    if not must_check(agent._vocabulary, drafts):
        try:
            return await agent._write(send, request)
        except Unchecked as unchecked:
            agent._vocabulary.learn(unchecked.schemas)
        except (UnknownRecipient, UnknownType) as error:
            raise await with_suggestions(agent._engine, error) from None
    return cast("list[Receipt]", (await _commit(agent, (Part(send, request),), 0))[-1])


def must_check(vocabulary: Vocabulary, drafts: Iterable[Draft]) -> bool:
    """Return True if one of the drafts has a schema, as far as this process knows."""
    known = vocabulary.known_schemas
    return any(draft.defines is not None or draft.type in known for draft in drafts)


def commit(agent: Sender, parts: tuple[Part, ...]) -> Coroutine[Any, Any, list[Any]]:
    """Commit these parts together, with the definition of every Struct that is sent for the first time.

    Payloads are checked first, against the schemas known to this process. If the bus has other schemas, they are
    checked and sent again.
    """
    index = next((index for index, part in enumerate(parts) if part.operation is send), None)
    if index is None:
        return _write_all(agent, parts)
    return _commit(agent, parts, index) if core.tracer is None else _commit_traced(agent, parts, index, core.tracer)


async def _commit_traced(agent: Sender, parts: tuple[Part, ...], index: int, tracer: Propagation) -> list[Any]:
    with tracer.send(parts[index].request.drafts) as span:
        sending = Part(send, SendRequest(agent._actor, span.drafts))
        results = await _commit(agent, (*parts[:index], sending, *parts[index + 1 :]), index)
        # Definitions of types may come before.
        span.receipts = results[index - len(parts)]
        return results


async def _commit(agent: Sender, parts: tuple[Part, ...], index: int) -> list[Any]:
    vocabulary = agent._vocabulary
    drafts = parts[index].request.drafts
    type = ""
    for _ in range(_MAX_ROUNDS):
        drafts, problems = await agent._checker.check(drafts)
        definitions = vocabulary.undefined(drafts, agent.id)
        sending = (*(Part(define, one) for one in definitions), Part(send, SendRequest(agent._actor, drafts)))
        try:
            results = await _write_all(agent, (*parts[:index], *sending, *parts[index + 1 :]))
        except Unchecked as unchecked:
            type = unchecked.type
            problem = problems.get((unchecked.item, unchecked.schemas[type]))
            if problem is not None:
                raise problem.__class__(**problem.facts, item=unchecked.item) from None
            vocabulary.learn(unchecked.schemas)
            continue
        vocabulary.remember(definitions)
        return results
    raise TypeChanging(type=type, rounds=_MAX_ROUNDS)


async def _write_all(agent: Sender, parts: tuple[Part, ...]) -> list[Any]:
    try:
        if len(parts) == 1:
            # One operation is atomic by itself.
            return [await agent._write(parts[0].operation, parts[0].request)]
        request = UnitRequest(parts)
        return await agent._write(unit, request, durable=request.durable)
    except (UnknownRecipient, UnknownType) as error:
        raise await with_suggestions(agent._engine, error) from None


async def with_suggestions(engine: Engine, error: UnknownRecipient | UnknownType) -> UnknownRecipient | UnknownType:
    """Return the error with similar names that exist. Reads after the failure, not under the write lock."""
    from agentbus.operations.lookups import near_matches

    subject = "type" if isinstance(error, UnknownType) else "recipient"
    near = await engine.read(near_matches, (subject, error.kind, error.name))
    return type(error)(**{**error.facts, "near": near})


async def request(
    agent: Sender,
    to: str | Address,
    type: str | msgspec.Struct,
    payload: Any,
    timeout: float,
    options: SendOptions,
    read: Callable[[MessageRow], M],
) -> M:
    """Send a message and wait for its reply, which ``read`` makes of its row."""
    from agentbus.operations.receive import ReplyRequest, take_reply

    duration = check_seconds(timeout, "timeout")
    given = options.get("correlation")
    correlation = given or new_correlation(options.get("message_id"))
    options["correlation"] = correlation
    options.setdefault("ttl", timeout)
    replies = agent._replies
    question = draft_from(agent, to, type, payload, options)
    # A new correlation is a new thread.
    question = msgspec.structs.replace(question, reply_to=replies, follows=0 if given else None)
    waiter = agent._engine.waiters.listen((reply_channel(replies, correlation),))
    agent._waiting += 1
    try:
        clock = agent._engine.clock
        deadline = clock.now().awake + duration
        (receipt,) = await send_drafts(agent, question)
        if not receipt.delivered:
            raise RequestDied(recipient=str(to), reason="the topic has no subscriber")
        # A request that was sent before may have its reply already.
        skip_wait = receipt.duplicate
        while True:
            left = deadline - clock.now().awake
            if not skip_wait and left > 0:
                await waiter.wait(left / 1000)
            row = await agent._write(take_reply, ReplyRequest(agent._actor, replies, correlation, receipt.duplicate))
            if row is not None:
                break
            if left <= 0:
                facts = await _find_hold(agent, receipt, replies, correlation)
                raise RequestTimedOut(recipient=str(to), type=question.type, timeout=timeout, **facts)
            skip_wait = False
    finally:
        agent._waiting -= 1
        waiter.close()
    reply = read(row)
    if reply.sender == BUS:
        raise RequestDied(recipient=str(to), reason=reply.payload["dead"])
    return reply


async def _find_hold(agent: Sender, receipt: Receipt, replies: int, correlation: str) -> dict[str, str]:
    """Return what the loop guard holds of a request without a reply: the request, or the reply; nothing if neither."""
    from agentbus.operations.holds import held_reply

    if receipt.held:
        return {"held": "request", "thread": correlation}
    if await agent._engine.read(held_reply, (replies, correlation)):
        return {"held": "reply", "thread": correlation}
    return {}


class ReplyContext(msgspec.Struct, frozen=True):
    """The fields of a message that its reply depends on."""

    message_id: str
    session: str | None
    correlation: str | None
    reply_to: int | None
    expires: int | None

    def draft(self, agent: Sender, to: str, type: str | msgspec.Struct, payload: Any, options: SendOptions) -> Draft:
        """Return the reply: sent to the mailbox that awaits it, and queued even for an agent that has ended."""
        defaults: SendOptions = {"session": self.session, "correlation": self.correlation or self.message_id}
        if self.reply_to is not None and self.expires is not None:
            # The requester does not wait for the reply beyond the expiry of the request.
            defaults["ttl"] = max(1, self.expires - agent._engine.clock.now().wall) / 1000
        reply = draft_from(agent, to, type, payload, {**defaults, **options})
        return msgspec.structs.replace(
            reply, to=reply.to if self.reply_to is None else self.reply_to, reply=True, follows=self._follows(options)
        )

    def _follows(self, options: SendOptions) -> int | None:
        """Return how many messages a reply follows in its thread, at least; None for the first reply to a message or to
        a request, which is not counted."""
        if options.get("correlation") is not None:
            return 0
        if self.correlation is None or (self.reply_to is not None and _is_generated(self.correlation)):
            return None
        return 2


def reply_draft(
    agent: Sender, message: Message | TaskMessage, type: str | msgspec.Struct, payload: Any, options: SendOptions
) -> Draft:
    """Return the reply to a message, as an agent or a task received it."""
    if isinstance(message, msgspec.Struct):
        reply_to, expires = message.reply_to, message.expires
    else:
        reply_to, expires = message._row.reply_to, message._row.expires
    context = ReplyContext(message.message_id, message.session, message.correlation, reply_to, expires)
    return context.draft(agent, message.sender, type, payload, options)


def new_correlation(message_id: object) -> str:
    """Return the correlation of a request. The same request, sent again, has the same one."""
    if message_id is None:
        return f"r-{os.urandom(12).hex()}"
    from hashlib import sha256

    return f"r-{sha256(str(message_id).encode()).hexdigest()[:24]}"


def _is_generated(correlation: str) -> bool:
    """Return True if a request generated this correlation."""
    return len(correlation) == _GENERATED_LENGTH and correlation.startswith("r-")


def retry_delay(attempts: int) -> float:
    """Return the seconds until a message is delivered again after this many attempts.

    >>> 0.5 <= retry_delay(1) <= 1.0 and retry_delay(50) <= 300.0
    True
    """
    from agentbus.core.clock import backoff

    return backoff(attempts, FIRST_RETRY, MAX_RETRY, jitter=0.5)


def require_session(agent: Sender, session: str | None) -> str:
    """Return this session, or that of the agent. Raise Misuse if there is neither."""
    session = session or agent.session
    if session is None:
        raise Misuse(reason=f"{agent.id} belongs to no session, so it has no documents")
    return session


Problems: TypeAlias = dict[tuple[int, str], InvalidPayload | InvalidSchema]
"""The errors of drafts that do not match a schema, by position and schema."""


class PayloadChecker:
    """Check payloads against the schemas of their types, large ones on a thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._thread: CapacityLimiter | None = None

    async def check(self, drafts: Sequence[Draft]) -> tuple[tuple[Draft, ...], Problems]:
        """Return the drafts, those that match the schema of their type marked with it, and the errors of the others.

        The errors are not raised here: the schema may have changed since, and a message_id that was sent before is not
        checked again. The database decides.
        """
        schemas = self._vocabulary.schemas(drafts)
        result: list[Draft] = []
        problems: Problems = {}
        checked = 0
        for item, draft in enumerate(drafts):
            schema = schemas[draft.type]
            if schema is not None and schema != draft.fits:
                checked += len(draft.payload[0])
                problem = await self._misfit(draft, schema)
                if problem is None:
                    draft = msgspec.structs.replace(draft, fits=schema)
                else:
                    problems[item, schema] = problem
                if checked > _LARGE:
                    await yield_to_loop()
                    checked = 0
            result.append(draft)
        return tuple(result), problems

    async def _misfit(self, draft: Draft, schema: str) -> InvalidPayload | InvalidSchema | None:
        from agentbus.core.jsonschema import payload_error

        payload = draft.payload[0]
        if len(payload) <= _LARGE:
            return payload_error(draft.type, payload, schema)
        if self._thread is None and has_loop():
            from anyio import CapacityLimiter

            # One at a time: several threads would compete with the loop for the interpreter.
            self._thread = CapacityLimiter(1)
        return await run_in_thread(
            payload_error, draft.type, payload, schema, abandon_on_cancel=True, limiter=self._thread
        )
