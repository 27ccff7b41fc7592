"""The built-in message types: a description, the usual fields and an example of each.

The fields are advisory: built-in message types accept any JSON. The database holds the same names and descriptions, and
those of the agent types.
"""

from __future__ import annotations

from typing import Any

import msgspec


class BuiltInMessage(msgspec.Struct, frozen=True):
    """A built-in message type: its purpose, its usual fields with a description each, an example."""

    description: str
    fields: dict[str, str]
    example: Any


MESSAGE_TYPES: dict[str, BuiltInMessage] = {
    "task_assignment": BuiltInMessage(
        "work for the receiver",
        {
            "task": "the name or number of the task",
            "phase": "which phase of the work this is",
            "description": "what is to be done, in words",
            "files": "paths that the work is about",
            "due": "when it should be done, in wall milliseconds",
        },
        {"phase": "design", "description": "sketch the tables", "files": ["schema.sql"]},
    ),
    "progress_update": BuiltInMessage(
        "how far the sender is",
        {"task": "what the sender works on", "percent": "how far it is, from 0 to 100", "note": "what it does now"},
        {"task": "design", "percent": 40, "note": "writing tests"},
    ),
    "coordination_request": BuiltInMessage(
        "a question that wants an answer",
        {"question": "what the sender wants to know", "options": "answers to choose from", "about": "what it is about"},
        {"question": "may I change the schema?", "options": ["yes", "no"]},
    ),
    "coordination_response": BuiltInMessage(
        "the answer to a question",
        {"answer": "what the asker wanted to know", "reason": "why"},
        {"answer": "yes", "reason": "no other agent works on it"},
    ),
    "validation_result": BuiltInMessage(
        "the outcome of a check",
        {"check": "what was checked", "passed": "whether it passed", "problems": "what was found"},
        {"check": "tests", "passed": False, "problems": ["test_order fails"]},
    ),
    "error_report": BuiltInMessage(
        "something went wrong",
        {
            "agent": "who failed; the bus itself reports an agent that failed to its parent",
            "status": "what became of that agent",
            "error": "what went wrong",
            "task": "what the sender was working on",
            "request": "the message_id of a request that became a dead letter; the bus itself tells the requester",
            "dead": "why it did",
        },
        {"agent": "executor-1", "status": "failed", "error": "the tests cannot be made to pass"},
    ),
    "completion_notification": BuiltInMessage(
        "work is finished",
        {"task": "what is finished", "result": "what came out of it", "files": "paths that were written"},
        {"task": "design", "result": "3 tables", "files": ["schema.sql"]},
    ),
    "approval_request": BuiltInMessage(
        "a person is asked to decide",
        {"question": "what is to be decided", "options": "what can be chosen", "about": "what it is about"},
        {"question": "deploy to production?", "options": ["approve", "reject"]},
    ),
    "approval_decision": BuiltInMessage(
        "what a person decided",
        {"approved": "whether it was approved", "by": "who decided", "comment": "what they said"},
        {"approved": True, "by": "ada", "comment": "after 18:00 please"},
    ),
    "control": BuiltInMessage(
        "halt, continue, redo or stop",
        {"action": "halt, continue, redo or stop", "reason": "why", "task": "what it is about, if not all of the work"},
        {"action": "halt", "reason": "the build is broken"},
    ),
    "steer": BuiltInMessage(
        "a person directs an agent at its next tool call",
        {
            "text": "what the person asks of the agent",
            "stop_after": "true: the agent is to stop after its current step, and may",
        },
        {"text": "use the new API", "stop_after": False},
    ),
    "note": BuiltInMessage("anything else", {"text": "what is to be said"}, {"text": "I have moved the tests"}),
}  # fmt: skip
