"""The stdio transport: one JSON-RPC message per line, without an event loop.

The main thread reads and answers; a call that may wait gets a thread, so that it keeps no other from being answered. A
call whose client is gone, or that is cancelled, releases what it took.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from agentbus.errors import AgentBusError
from agentbus.mcp.dispatcher import Connection, Context, Dispatcher, internal_error
from agentbus.mcp.protocol import BATCHES, INVALID_REQUEST, MAX_BYTES, Fault, Notification, Request, decode, encode
from agentbus.sync.bus import Interrupted

if TYPE_CHECKING:
    from threading import Thread

_CHUNK = 256 * 1024
_MAX_WAITING = 64
"""Calls that may wait at the same time."""
_LAST_WAIT = 5.0
"""Seconds that calls have to release what they took, once the client is gone."""


class ClientGone(Exception):
    """The client does not read answers any more."""


class StdioServer:
    """Serves one client over two pipes."""

    def __init__(
        self, dispatcher: Dispatcher, identity: Any, *, decider: str | None = None, input: int = 0, output: int = 1
    ) -> None:
        self._dispatcher = dispatcher
        self._connection = Connection(identity, decider=decider)
        self._input = input
        self._output = output
        self._calls: dict[int | str, Context] = {}
        """The calls that are being answered, by the id of their requests."""
        self._threads: set[Thread] = set()
        self._writing: Any = None
        """The lock of the output, once there are several threads."""
        self._gone = False

    def serve(self) -> None:
        """Answer until the client closes its pipe, or reads no more. A signal that raises ends it too."""
        try:
            with suppress(ClientGone), wakeup() as woken:
                for line in lines(self._input, woken):
                    if isinstance(line, Fault):
                        self._write(line.response())
                    elif line.strip():
                        self._handle(line)
                    if self._gone:
                        break
        finally:
            self._end_calls()

    def _handle(self, line: bytes | bytearray) -> None:
        try:
            message = decode(line, batches=self._connection.version == BATCHES)
            if isinstance(message, Notification):
                self._notice(message)
            elif isinstance(message, list):
                self._handle_batch(message)
            elif message is not None:
                self._request(message)
        except Fault as fault:
            self._write(fault.response())

    def _handle_batch(self, messages: list[Request | Notification | Fault]) -> None:
        """Answer the requests of a batch one after the other, by one list of responses."""
        responses: list[dict[str, Any]] = []
        contexts: list[Context] = []
        for message in messages:
            if isinstance(message, Notification):
                self._notice(message)
            elif isinstance(message, Fault):
                responses.append(message.response())
            else:
                try:
                    contexts.append(self._open(message))
                except Fault as fault:
                    responses.append(fault.response())
        if not any(self._dispatcher.may_wait(context.request) for context in contexts):
            self._answer_batch(contexts, responses)
        elif len(self._threads) < _MAX_WAITING:
            self._spawn(lambda: self._answer_batch(contexts, responses))
        else:
            for context in contexts:
                del self._calls[context.request.id]
                responses.append(_too_many(context.request).response())
            self._write(responses)

    def _answer_batch(self, contexts: list[Context], responses: list[dict[str, Any]]) -> None:
        with ExitStack() as taken:
            for context in contexts:
                self._answer(context, lambda request, answer: responses.append(answer), taken)
            if responses:
                self._write(responses)

    def _notice(self, message: Notification) -> None:
        if message.method == "notifications/cancelled":
            id = message.params.get("requestId")
            context = self._calls.get(id) if isinstance(id, int | str) else None
            if context is not None:
                context.cancellation.cancel()

    def _open(self, request: Request) -> Context:
        if request.id in self._calls:
            raise Fault(INVALID_REQUEST, "the request with this id is being answered: use another id", id=request.id)
        context = self._dispatcher.open(request, self._connection, self._write, self._spawn)
        self._calls[request.id] = context
        return context

    def _request(self, request: Request) -> None:
        context = self._open(request)
        if not self._dispatcher.may_wait(request):
            self._answer(context)
        elif len(self._threads) < _MAX_WAITING:
            self._spawn(lambda: self._answer(context))
        else:
            del self._calls[request.id]
            raise _too_many(request)

    def _answer(
        self,
        context: Context,
        write: Callable[[Request, dict[str, Any]], None] | None = None,
        taken: ExitStack | None = None,
    ) -> None:
        """Answer a request. Of a batch, the answer is added to others, and what it took is held until they are
        written."""
        request = context.request
        write = write or self._write_answer
        try:
            reply = self._dispatcher.answer(context)
            with ExitStack() as own:
                own.push(reply)
                if context.cancellation.cancelled:
                    raise Interrupted
                write(request, self._dispatcher.response(request, reply))
                if taken is not None:
                    taken.push(own.pop_all())
        except Interrupted:
            # Cancelled: the client waits for no answer.
            pass
        except Fault as fault:
            write(request, fault.response())
        except (ClientGone, MemoryError):
            raise
        except Exception as error:
            write(request, internal_error(error, request.id).response())
        finally:
            if self._calls.get(request.id) is context:
                del self._calls[request.id]

    def _write_answer(self, request: Request, answer: dict[str, Any]) -> None:
        # Before it is written: the client may use the id again at once.
        self._calls.pop(request.id, None)
        self._write(answer)

    # Threads

    def _spawn(self, work: Callable[[], None]) -> None:
        from threading import Lock, Thread, current_thread

        if self._writing is None:
            self._writing = Lock()

        def run() -> None:
            try:
                with suppress(ClientGone, AgentBusError):
                    work()
            finally:
                self._threads.discard(current_thread())

        # A daemon: the process does not wait for a call that hangs.
        thread = Thread(target=run, daemon=True)
        self._threads.add(thread)
        thread.start()

    def _end_calls(self) -> None:
        """Cancel all calls, and give them time to release what they took."""
        self._gone = True
        for context in list(self._calls.values()):
            context.cancellation.cancel()
        for cancellation in self._connection.watched.values():
            cancellation.cancel()
        until = time.monotonic() + _LAST_WAIT
        for thread in list(self._threads):
            thread.join(max(0.0, until - time.monotonic()))

    def _write(self, message: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Write a message as one line, or raise ClientGone."""
        line = encode(message) + b"\n"
        if self._writing is None:
            self._write_all(line)
        else:
            with self._writing:
                self._write_all(line)

    def _write_all(self, line: bytes) -> None:
        left = memoryview(line)
        while left:
            try:
                left = left[os.write(self._output, left) :]
            except BlockingIOError:
                from select import select

                select([], [self._output], [])
            except OSError as error:
                self._gone = True
                raise ClientGone from error


@contextmanager
def wakeup() -> Iterator[int | None]:
    """Return a descriptor that a signal makes readable. A signal that arrives right before a blocking read does not
    interrupt it: its handler would run only when the client writes again."""
    import signal

    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    try:
        try:
            before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        except ValueError:
            # Only the main thread handles signals.
            yield None
            return
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(before)
    finally:
        os.close(reader)
        os.close(writer)


def lines(input: int, woken: int | None = None) -> Iterator[bytes | bytearray | Fault]:
    """Yield the lines that arrive on a descriptor, without what follows the last line break: it is half a message. A
    line that is too long is skipped, and a fault in its place. ``woken``: a descriptor that ends a wait, so that the
    handler of a signal runs."""
    from select import select

    waits = [input] if woken is None else [input, woken]
    rest = bytearray()
    skipping = False
    while True:
        try:
            ready = select(waits, [], [])[0]
        except OSError:
            return
        if woken is not None and woken in ready:
            with suppress(BlockingIOError):
                os.read(woken, _CHUNK)
        if input not in ready:
            continue
        try:
            chunk = os.read(input, _CHUNK)
        except BlockingIOError:
            continue
        except OSError:
            return
        if not chunk:
            return
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            rest += chunk[start:end]
            start = end + 1
            if not skipping and len(rest) <= MAX_BYTES:
                yield rest
            elif not skipping:
                yield _too_long()
            rest, skipping = bytearray(), False
        if not skipping:
            rest += chunk[start:]
            if len(rest) > MAX_BYTES:
                yield _too_long()
                rest, skipping = bytearray(), True


def _too_many(request: Request) -> Fault:
    return Fault(INVALID_REQUEST, f"{_MAX_WAITING} calls are waiting already", id=request.id)


def _too_long() -> Fault:
    return Fault(INVALID_REQUEST, f"a message of more than {MAX_BYTES // 1024**2} MiB is not accepted")
