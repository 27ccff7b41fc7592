"""JSON Schema, the part that payloads need, checked strictly: what a schema says holds, or the schema is refused.

Of draft 2020-12 these keywords are known, which is all that msgspec makes of a Struct and what people usually write:

    any value   type enum const $ref (to "#" and "#/$defs/…") $defs anyOf oneOf allOf not
    objects     properties required additionalProperties propertyNames minProperties maxProperties
    arrays      items prefixItems minItems maxItems uniqueItems
    numbers     minimum maximum exclusiveMinimum exclusiveMaximum multipleOf
    texts       minLength maxLength pattern
    said only   title description default examples deprecated readOnly writeOnly format contentEncoding
                contentMediaType contentSchema discriminator $schema $id $comment, and what begins with x-

Any other keyword is refused by name when the schema is compiled, because to ignore it would let through what it
forbids. A schema may be anybody's, and everybody's payloads are checked against it, so that a check may not take long,
whatever the schema and the payload are: its work is counted, and what takes too much is refused; patterns are matched
in linear time (see ``patterns``). An integer is one by its value, as JSON Schema has it: 12.0 is one. Multiples are
those of the decimal numbers as written: 0.3 is a multiple of 0.1.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from agentbus.codec import canonical, decode, encode
from agentbus.errors import InvalidPayload, InvalidSchema, PayloadTooLarge
from agentbus.schema.compiling import Unusable, compile_schema
from agentbus.schema.work import Check, TooMuch, Work

MAX_SCHEMA = 64 * 1024
"""Bytes of a schema's text."""
MOST_WORK = 2_000_000
"""Steps that checking one payload may take: a second or two at worst, and enough for any list of a million bytes."""


class Schema:
    """A compiled schema.

    >>> compiled('{"properties": {"files": {"type": "integer"}}}').problem({"files": "twelve"})
    ('$.files', 'must be an integer, is a string')
    """

    __slots__ = ("_check",)

    def __init__(self, check: Check) -> None:
        self._check = check

    def problem(self, value: Any) -> tuple[str, str] | None:
        """Where the value does not fit, as a JSON path, and why not; None if it fits."""
        try:
            problem = self._check(value, Work(MOST_WORK), 0)
        except TooMuch as error:
            return "$", str(error)
        except RecursionError:
            return "$", "is nested too deep for its schema"
        return None if problem is None else (problem.place, problem.reason)


@lru_cache(maxsize=256)
def compiled(text: str) -> Schema:
    """The schema of this text, compiled once. Raises InvalidSchema, without the name of the type."""
    try:
        return Schema(compile_schema(decode(text)))
    except Unusable as problem:
        raise InvalidSchema(path=problem.place, reason=problem.reason) from None


def misfit(type: str, payload: str, schema: str) -> InvalidPayload | InvalidSchema | None:
    """Why this JSON cannot be the payload of a type with this schema, or None."""
    try:
        problem = compiled(schema).problem(decode(payload))
    except InvalidSchema as error:
        # Someone wrote it into the database by other means.
        return InvalidSchema(**{**error.facts, "type": type})
    if problem is None:
        return None
    path, reason = problem
    rule = f"the last definition of {type!r} counts, whoever made it: look at its schema"
    return InvalidPayload(type=type, path=path, reason=f"for {type!r}, {path} {reason}", rule=rule)


def schema_text(schema: object, type: str) -> str:
    """A schema as it is kept: JSON with sorted keys, so that the same schema is the same text. Or InvalidSchema."""
    if not isinstance(schema, dict):
        raise InvalidSchema(type=type, path="#", reason="it must be a dict")
    try:
        text = canonical(encode(schema, MAX_SCHEMA)[0]).decode()
        compiled(text)
    except InvalidSchema as error:
        raise InvalidSchema(**{**error.facts, "type": type}) from None
    except PayloadTooLarge as error:
        raise InvalidSchema(
            type=type, path="#", reason=f"it has {error.size} bytes, {error.limit} are allowed"
        ) from None
    except InvalidPayload as error:
        raise InvalidSchema(type=type, path="#", reason=error.reason) from None
    return text
