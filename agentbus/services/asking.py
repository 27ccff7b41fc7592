"""Whether an interrupted session shall be resumed when a bus is opened: who is asked, and what counts as yes."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

from agentbus.errors import OutOfRange
from agentbus.errors.base import shown
from agentbus.limits import error_text
from agentbus.records import RecoveryRecord
from agentbus.services.callbacks import (
    being_cancelled,
    check_callback,
    guarded,
    log_failure,
    raised,
    wrapping_exits,
)
from agentbus.settings import switched_on

log = logging.getLogger("agentbus.recovery")

AUTO_RESUME = "AGENTBUS_AUTO_RESUME"

Ask = Callable[[RecoveryRecord], bool | Awaitable[bool]]
"""Decides whether a session shall be resumed. Runs on a thread, so that it may wait for a person; if it is async, on
the event loop."""


def asking(auto_resume: object) -> Ask | None:
    """What ``connect(auto_resume=…)`` means: who decides, or None if nothing is to be resumed.

    True asks on a terminal, and resumes without a question where there is none; a function is asked instead, with the
    RecoveryRecord of each interrupted session.
    """
    if auto_resume is None:
        auto_resume = switched_on(AUTO_RESUME)
    if auto_resume is True:
        return ask_on_terminal
    if auto_resume is False:
        return None
    if not callable(auto_resume):
        raise OutOfRange(what="auto_resume", value=auto_resume, allowed="True, False, or a function that decides")
    check_callback(auto_resume, "auto_resume", "record")
    return auto_resume


async def answer(ask: Ask, record: RecoveryRecord) -> bool:
    """Whether a session shall be resumed. What is not a clear answer is logged, and no."""
    session = record.session.id
    try:
        said: object = await _on_a_thread(ask, record)
        if inspect.isawaitable(said):
            said = await guarded(said)
    except (Exception, asyncio.CancelledError) as error:
        if being_cancelled():
            raise
        # One line for each session; whoever needs the traceback can have it.
        cause = raised(error)
        log.warning("%s was not resumed: auto_resume raised %s", session, " ".join(error_text(cause).split()))
        log_failure(log, cause, "auto_resume failed", level=logging.DEBUG)
        return False
    if not isinstance(said, bool):
        log.warning(
            "%s was not resumed: auto_resume answered %.100s, it must be True or False", session, shown(said, repr)
        )
        return False
    return said


async def _on_a_thread(ask: Ask, record: RecoveryRecord) -> object:
    """A daemon thread: one that waits for a person must not keep the process from ending."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[object] = loop.create_future()

    def settle(said: object, error: BaseException | None) -> None:
        if answered.done():
            return  # nobody waits any more
        if error is None:
            answered.set_result(said)
        else:
            answered.set_exception(error)

    def run() -> None:
        said: object = None
        problem: BaseException | None = None
        try:
            said = wrapping_exits(lambda: ask(record))
        except BaseException as error:
            problem = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, said, problem)

    threading.Thread(target=run, name="agentbus-asking", daemon=True).start()
    return await answered


def ask_on_terminal(record: RecoveryRecord) -> bool:
    """Ask whoever sits there; yes where nobody does."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    session = record.session
    print(f"Session {session.id} ({session.operation}, {session.progress} %) was interrupted.", file=sys.stderr)
    print("Resume it? [Y/n] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    # Without a line the terminal is gone, or somebody pressed Ctrl-D: that is no yes.
    return answer.strip().lower() in {"", "y", "yes"} if answer else False
