"""Compile a schema: look up keywords, resolve references, and refuse whatever is not certain to terminate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, TypeAlias

from agentbus.core.codec import canonical, decode, encode
from agentbus.core.jsonschema.keywords import (
    KEYWORDS,
    Check,
    InvalidKeyword,
    Violation,
    accept,
    reject,
    truncate,
)
from agentbus.core.jsonschema.linear_regex import Budget, BudgetExceeded, Pattern, UnsupportedPattern
from agentbus.errors import InvalidPayload, InvalidSchema, PayloadTooLarge

MAX_SCHEMA = 64 * 1024
"""Bytes of a schema's text."""
MAX_WORK = 2_000_000
"""Steps of one check: a second or two at worst, and enough for a payload of a million bytes."""
MAX_NESTING = 64
"""Depth of nested schemas, and of references that follow each other without going deeper into the value."""
MAX_PATTERN_SIZE = 50_000
"""States and repeats of all patterns of a schema: they take a fraction of a second to compile."""
_MAX_DEPTH = 400
"""Depth of nested checks; each takes a frame or two of Python's thousand."""
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_is_anchor = re.compile(r"[A-Za-z_][-A-Za-z0-9._]*").fullmatch

ANNOTATIONS: dict[str, type | tuple[type, ...]] = {
    "title": str,
    "description": str,
    "default": object,
    "examples": list,
    "deprecated": bool,
    "readOnly": bool,
    "writeOnly": bool,
    "format": str,
    "contentEncoding": str,
    "contentMediaType": str,
    "contentSchema": (dict, bool),
    "discriminator": dict,
    "$comment": str,
}
"""Keywords that no value can violate, and the types of their arguments."""
STRUCTURE = ("$ref", "$defs", "$anchor", "$schema", "$id")
_ROOT_ONLY = ("$schema", "$id")
_EVALUATE_ALL = {dict: ("additionalProperties", "unevaluatedProperties"), list: ("items", "unevaluatedItems")}

Steps: TypeAlias = tuple[str, ...]
"""The path of a subschema in its document."""


class Schema:
    """A compiled schema.

    >>> compiled('{"properties": {"files": {"type": "integer"}}}').violation({"files": "twelve"})
    ('$.files', 'must be an integer, is a string')
    """

    __slots__ = ("_check",)

    def __init__(self, check: Check) -> None:
        self._check = check

    def violation(self, value: Any) -> tuple[str, str] | None:
        """Return the JSON path and the reason of the first violation, or None if the value matches."""
        try:
            violation = self._check(value, Budget(MAX_WORK), 0)
        except BudgetExceeded as error:
            return "$", str(error)
        except RecursionError:
            return "$", "is nested too deep for its schema"
        return None if violation is None else (violation.path, violation.reason)


@lru_cache(maxsize=256)
def compiled(text: str) -> Schema:
    """Return the compiled schema of a text. Raises InvalidSchema without the name of the type."""
    try:
        return Schema(_Compiler(decode(text)).check)
    except _Refused as error:
        raise InvalidSchema(path=error.path, reason=error.reason) from None


def payload_error(type: str, payload: str, schema: str) -> InvalidPayload | InvalidSchema | None:
    """Return the error if this JSON is not a valid payload for a type with this schema, else None."""
    try:
        violation = compiled(schema).violation(decode(payload))
    except InvalidSchema as error:
        # Another program wrote it into the database.
        return InvalidSchema(**{**error.facts, "type": type})
    if violation is None:
        return None
    path, reason = violation
    rule = f"the latest definition of {type!r} applies: see its schema"
    return InvalidPayload(type=type, path=path, reason=f"for {type!r}, {path} {reason}", rule=rule)


def schema_text(schema: object, type: str) -> str:
    """Return a schema as it is stored: JSON with sorted keys, so that equal schemas have equal texts.

    Raises InvalidSchema.
    """
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


class _Refused(Exception):
    """A schema that cannot be used: where in it, and why."""

    def __init__(self, steps: Steps, reason: str) -> None:
        super().__init__(reason)
        self.path = "/".join(["#", *(truncate(step) for step in steps)])
        self.reason = reason


class _Reference:
    """The check of a ``$ref``, which may precede its target."""

    __slots__ = ("steps", "target", "text", "to")

    def __init__(self, text: str, steps: Steps) -> None:
        self.text = text
        self.steps = steps
        self.target: Check = reject
        self.to: Steps = ()

    def __call__(self, value: Any, budget: Budget, depth: int) -> Violation | None:
        if depth > _MAX_DEPTH:
            raise BudgetExceeded("is nested too deep for its schema")
        budget.spend(1)
        return self.target(value, budget, depth + 1)


class _Subschema:
    """One subschema while it is compiled; implements ``keywords.Location``."""

    __slots__ = ("_compiler", "_depth", "chain", "schema", "steps")

    def __init__(
        self, compiler: _Compiler, schema: dict[str, Any], steps: Steps, chain: tuple[Steps, ...], depth: int
    ) -> None:
        self._compiler = compiler
        self._depth = depth
        self.schema = schema
        self.steps = steps
        self.chain = chain
        """The subschemas around this one, and itself, that apply to the same value."""

    def compile(self, schema: Any, *steps: str | int, same: bool = False) -> Check:
        inner = (*self.steps, *map(str, steps))
        return self._compiler.compile(schema, inner, self.chain if same else (), self._depth + 1)

    def pattern(self, text: Any, *steps: str) -> Pattern:
        return self._compiler.pattern(text, (*self.steps, *steps))

    def evaluated(self, value: Any, budget: Budget, depth: int) -> set[str | int]:
        return self._compiler.evaluated(self.steps, value, budget, depth, outermost=True)


class _Compiler:
    """Compiles one document. A subschema is known by its steps from the root, so that any can be referred to."""

    def __init__(self, root: Any) -> None:
        if not isinstance(root, dict):
            raise _Refused((), "it must be an object")
        if root.get("$schema", _DIALECT) not in (_DIALECT, f"{_DIALECT}#"):
            raise _Refused(("$schema",), f"it must be {_DIALECT}")
        if not isinstance(root.get("$id", ""), str):
            raise _Refused(("$id",), "it must be a string")
        self._id = root.get("$id", "").removesuffix("#")
        self._schemas: dict[Steps, Any] = {}
        self._checks: dict[Steps, Check] = {}
        self._patterns: dict[str, Pattern] = {}
        self._pattern_size = 0
        self._anchors: dict[str, Steps] = {}
        self._references: dict[Steps, _Reference] = {}
        self._same_value: dict[Steps, list[_Reference]] = {}
        """The references of each subschema that apply to its own value: a cycle of them would never end."""
        self.check = self.compile(root, (), (), 0)
        for reference in self._references.values():
            reference.to = self._resolve(reference)
            reference.target = self._checks[reference.to]
        lengths: dict[Steps, int] = {}
        for steps in self._same_value:
            self._follow(steps, (), steps, lengths)

    def compile(self, schema: Any, steps: Steps, chain: tuple[Steps, ...], depth: int) -> Check:
        """Compile the subschema at these steps; ``chain``: those around it that apply to the same value."""
        self._schemas[steps] = schema
        check = self._checks[steps] = self._compile(schema, steps, (*chain, steps), depth)
        return check

    def _compile(self, schema: Any, steps: Steps, chain: tuple[Steps, ...], depth: int) -> Check:
        if schema is True or schema == {}:
            return accept
        if schema is False:
            return reject
        if not isinstance(schema, dict):
            raise _Refused(steps, "a schema must be an object, true or false")
        if depth > MAX_NESTING:
            raise _Refused(steps, f"it is nested more than {MAX_NESTING} levels deep")
        location = _Subschema(self, schema, steps, chain, depth)
        for keyword, argument in schema.items():
            if keyword not in KEYWORDS and keyword not in STRUCTURE:
                _check_annotation(keyword, argument, steps)
            if keyword in _ROOT_ONLY and steps:
                raise _Refused((*steps, keyword), "it is allowed only at the root")
        self._define(location)
        checks: list[Check] = [self._refer(location)] if "$ref" in schema else []
        for keyword, build in KEYWORDS.items():
            if keyword in schema:
                try:
                    checks.append(build(schema[keyword], location))
                except InvalidKeyword as error:
                    raise _Refused((*steps, keyword), str(error)) from None
        return _all([check for check in checks if check is not accept])

    def pattern(self, text: Any, steps: Steps) -> Pattern:
        if not isinstance(text, str):
            raise _Refused(steps, "it must be a regular expression")
        if text not in self._patterns:
            try:
                pattern = self._patterns[text] = Pattern(text)
            except UnsupportedPattern as error:
                raise _Refused(steps, str(error)) from None
            self._pattern_size += pattern.size
            if self._pattern_size > MAX_PATTERN_SIZE:
                raise _Refused(
                    steps, f"the patterns of the schema have more than {MAX_PATTERN_SIZE} states and repeats"
                )
        return self._patterns[text]

    # References

    def _define(self, location: _Subschema) -> None:
        """Compile the definitions of a subschema and record its anchor."""
        schema, steps = location.schema, location.steps
        definitions = schema.get("$defs", {})
        if not isinstance(definitions, dict):
            raise _Refused((*steps, "$defs"), "it must be an object of schemas")
        for name, definition in definitions.items():
            location.compile(definition, "$defs", name)
        if "$anchor" in schema:
            anchor = schema["$anchor"]
            if not isinstance(anchor, str) or not _is_anchor(anchor) or anchor in self._anchors:
                raise _Refused((*steps, "$anchor"), "it must be a unique name")
            self._anchors[anchor] = steps

    def _refer(self, location: _Subschema) -> Check:
        text, steps = location.schema["$ref"], (*location.steps, "$ref")
        if not isinstance(text, str):
            raise _Refused(steps, "it must be a string")
        reference = self._references[location.steps] = _Reference(text, steps)
        for enclosing in location.chain:
            self._same_value.setdefault(enclosing, []).append(reference)
        return reference

    def _resolve(self, reference: _Reference) -> Steps:
        base, _, fragment = reference.text.partition("#")
        if "%" in fragment:
            from urllib.parse import unquote

            fragment = unquote(fragment)
        found: Steps | None
        if not fragment.startswith("/"):
            found = self._anchors.get(fragment) if fragment else ()
        else:
            found = tuple(step.replace("~1", "/").replace("~0", "~") for step in fragment.split("/")[1:])
        if found not in self._checks or base not in ("", self._id):
            reason = f"{truncate(reference.text)} is not a schema of this document; no other can be referred to"
            raise _Refused(reference.steps, reason)
        return found

    def _follow(self, steps: Steps, path: tuple[Steps, ...], where: Steps, lengths: dict[Steps, int]) -> int:
        """Return the length of the longest chain of references from here; ``lengths`` caches results."""
        if steps in path:
            raise _Refused(where, "it refers to itself without end")
        if steps not in lengths:
            following = self._same_value.get(steps, ())
            found = [self._follow(next.to, (*path, steps), next.steps, lengths) for next in following]
            lengths[steps] = 1 + max(found, default=0)
        if len(path) + lengths[steps] > MAX_NESTING:
            raise _Refused(where, f"more than {MAX_NESTING} references follow each other")
        return lengths[steps]

    # Evaluated keys

    def evaluated(
        self, steps: Steps, value: Any, budget: Budget, depth: int, outermost: bool = False
    ) -> set[str | int]:
        """Return the keys or indexes of an object or array that the subschema at ``steps`` evaluates.

        ``outermost``: its own "unevaluated" keywords ask, and do not count.
        """
        schema = self._schemas[steps]
        if not isinstance(schema, dict):
            return set()
        budget.spend(1 + len(schema) + len(value))
        others, unevaluated = _EVALUATE_ALL[value.__class__]
        if others in schema or (unevaluated in schema and not outermost):
            return set(value) if isinstance(value, dict) else set(range(len(value)))
        found = self._evaluated_here(schema, steps, value, budget, depth)
        for inner in self._applied(schema, steps, value, budget, depth):
            found |= self.evaluated(inner, value, budget, depth + 1)
        return found

    def _evaluated_here(
        self, schema: dict[str, Any], steps: Steps, value: Any, budget: Budget, depth: int
    ) -> set[str | int]:
        if isinstance(value, list):
            found: set[str | int] = set(range(min(len(value), len(schema.get("prefixItems", ())))))
            if "contains" in schema:
                check = self._checks[*steps, "contains"]
                found |= {index for index, item in enumerate(value) if check(item, budget, depth + 1) is None}
            return found
        patterns = [self._patterns[text] for text in schema.get("patternProperties", ())]
        declared = schema.get("properties", ())
        return {name for name in value if name in declared or any(pattern.search(name, budget) for pattern in patterns)}

    def _applied(self, schema: dict[str, Any], steps: Steps, value: Any, budget: Budget, depth: int) -> Iterator[Steps]:
        """Yield the subschemas that apply to the same value, and match it."""

        def matches(inner: Steps) -> bool:
            return self._checks[inner](value, budget, depth + 1) is None

        if "$ref" in schema:
            yield self._references[steps].to
        for keyword in ("allOf", "anyOf", "oneOf"):
            for index in range(len(schema.get(keyword, ()))):
                inner = (*steps, keyword, str(index))
                if keyword == "allOf" or matches(inner):
                    yield inner
        if "if" in schema:
            condition = matches((*steps, "if"))
            if condition:
                yield (*steps, "if")
            branch = "then" if condition else "else"
            if branch in schema:
                yield (*steps, branch)
        for name in schema.get("dependentSchemas", ()):
            if isinstance(value, dict) and name in value:
                yield (*steps, "dependentSchemas", name)


def _check_annotation(keyword: str, argument: Any, steps: Steps) -> None:
    kind = object if keyword.startswith("x-") else ANNOTATIONS.get(keyword)
    if kind is None:
        near = get_close_matches(keyword, [*KEYWORDS, *ANNOTATIONS, *STRUCTURE], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise _Refused(steps, f"unknown keyword {truncate(keyword)!r}{hint}")
    if not isinstance(argument, kind):
        raise _Refused((*steps, keyword), "its argument has the wrong type")


def _all(checks: list[Check]) -> Check:
    if not checks:
        return accept
    if len(checks) == 1:
        return checks[0]

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        for one in checks:
            violation = one(value, budget, depth)
            if violation is not None:
                return violation
        return None

    return check
