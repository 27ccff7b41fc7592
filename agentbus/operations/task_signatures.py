"""Signatures of workflows: announced by workers, and matched with the arguments of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import decode, plain
from agentbus.errors import WrongArguments
from agentbus.operations.common import fence
from agentbus.operations.protocol import Actor, ExecuteMany, Op, Outcome, Query, Row, operation

POSITIONAL, EITHER, REST, KEYWORD, REST_OF_KEYWORDS = "positional", "either", "rest", "keyword", "keywords"
_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}
"""Python types by JSON type; True is not a number."""
_PYTHON = {
    "null": "None", "boolean": "bool", "integer": "int", "number": "float", "string": "str", "array": "list",
    "object": "dict",
}  # fmt: skip


class Parameter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A parameter of a workflow. ``types`` are the JSON types that it accepts; empty if unknown."""

    name: str
    kind: str = EITHER
    required: bool = True
    types: tuple[str, ...] = ()

    def __str__(self) -> str:
        stars = {REST: "*", REST_OF_KEYWORDS: "**"}.get(self.kind, "")
        kind = f": {' | '.join(_PYTHON[one] for one in self.types)}" if self.types else ""
        return f"{stars}{self.name}{kind}{'' if self.required or stars else ' = …'}"

    def takes(self, value: Any) -> bool:
        return not self.types or any(
            isinstance(value, _TYPES[one]) and (one == "boolean" or not isinstance(value, bool)) for one in self.types
        )


Signature = tuple[Parameter, ...]


def format_signature(workflow: str, signature: Signature) -> str:
    """Return the readable form of a signature.

    >>> format_signature("feature", (Parameter("request", types=("string",)), Parameter("size", KEYWORD, False)))
    'feature(request: str, *, size = …)'
    """
    parts: list[str] = []
    last = None
    for parameter in signature:
        if last == POSITIONAL and parameter.kind != POSITIONAL:
            parts.append("/")
        if parameter.kind == KEYWORD and last not in {KEYWORD, REST}:
            parts.append("*")
        parts.append(str(parameter))
        last = parameter.kind
    return f"{workflow}({', '.join([*parts, *(['/'] if last == POSITIONAL else [])])})"


def misfit(signature: Signature, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> str | None:
    """Return why these arguments (JSON) do not match; None if they do.

    >>> misfit((Parameter("request"),), [], {"size": 3})
    "'request' is missing"
    >>> misfit((Parameter("request", types=("string",)),), [5], {})
    "'request' must be str, not int"
    """
    positional = [one for one in signature if one.kind in {POSITIONAL, EITHER}]
    named = {one.name: one for one in signature if one.kind in {EITHER, KEYWORD}}
    rest = next((one for one in signature if one.kind == REST), None)
    others = next((one for one in signature if one.kind == REST_OF_KEYWORDS), None)
    given = list(zip(positional, arguments, strict=False))
    bound = {one.name for one, _ in given}
    for one in signature:
        by_name = one.name in named and one.name in keywords
        if one.required and one.kind not in {REST, REST_OF_KEYWORDS} and one.name not in bound and not by_name:
            return f"{one.name!r} is missing"
    if len(arguments) > len(positional):
        if rest is None:
            return f"there are {len(arguments)} by position, and it takes {len(positional)} at most"
        given.extend((rest, value) for value in arguments[len(positional) :])
    for name, value in keywords.items():
        known = named.get(name, others)
        if known is None:
            return f"{name!r} is unknown"
        if name in named and name in bound:
            return f"{name!r} is given twice, by position and by name"
        given.append((known, value))
    for one, value in given:
        if not one.takes(value):
            wanted = " or ".join(_PYTHON[kind] for kind in one.types)
            return f"{one.name!r} must be {wanted}, not {'None' if value is None else type(value).__name__}"
    return None


class Signatures:
    """The signatures that live workers announce, by workflow and agent."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._found: dict[str, dict[str, str]] = {}
        for workflow, agent, signature in rows:
            self._found.setdefault(workflow, {})[agent] = signature

    def misfit(self, workflow: str, text: str) -> WrongArguments | None:
        """Return the error if no live worker accepts these arguments (JSON of a task); None if one does, or none is
        known."""
        announced = [_decode(one) for one in dict.fromkeys(self._found.get(workflow, {}).values())]
        if not announced:
            return None
        given = decode(text)
        return refusal(workflow, announced, given["arguments"], given["keywords"])

    def better_elsewhere(self, workflow: str, agent: str, text: str) -> bool:
        """Return whether another live worker accepts these arguments, and this one does not."""
        announced = self._found.get(workflow, {})
        if agent not in announced or len(set(announced.values())) < 2:
            return False
        given = decode(text)
        arguments = (given["arguments"], given["keywords"])
        if misfit(_decode(announced[agent]), *arguments) is None:
            return False
        return any(misfit(_decode(one), *arguments) is None for one in set(announced.values()))


def refusal(
    workflow: str, signatures: Sequence[Signature], arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> WrongArguments | None:
    """Return the error for arguments that none of these signatures accepts."""
    reasons = [misfit(one, arguments, keywords) for one in signatures]
    if None in reasons:
        return None
    takes = " or ".join(format_signature(workflow, one) for one in signatures)
    return WrongArguments(workflow=workflow, reason=reasons[0], signature=takes)


def signatures_of(workflows: Iterable[str]) -> Query:
    """Return the query whose rows ``Signatures`` takes."""
    return Query("workflow_signatures", (sorted(set(workflows)),))


def first_misfit(workflow: str, given: Mapping[str, Any]) -> Op[WrongArguments | None]:
    """Return the error for arguments of a task that no live worker accepts."""
    return Signatures((yield signatures_of([workflow]))).misfit(workflow, plain(given))


_decode = msgspec.json.Decoder(Signature).decode


class AnnounceRequest(msgspec.Struct, frozen=True):
    """The workflows of a worker, each with its signature as JSON; None withdraws it."""

    actor: Actor
    workflows: tuple[tuple[str, str | None], ...]

    @property
    def row_estimate(self) -> int:
        return len(self.workflows)


@operation(durable=False)
def announce_workflows(requests: Sequence[AnnounceRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Announce the signatures of a worker's workflows, until its agent ends."""
    refused = yield from fence(request.actor for request in requests)
    for request in requests:
        if request.actor in refused:
            continue
        agent = request.actor.agent
        yield ExecuteMany(
            "workflow_announce", [(name, agent, text) for name, text in request.workflows if text is not None]
        )
        yield ExecuteMany("workflow_withdraw", [(name, agent) for name, text in request.workflows if text is None])
    return [refused.get(request.actor) for request in requests]
