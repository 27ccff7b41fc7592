"""From a schema to one check: keywords looked up, references followed; what is not sure to end is refused."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, TypeAlias

from agentbus.schema.keywords import KEYWORDS, Wrong
from agentbus.schema.work import Check, Problem, TooMuch, Work, anything, shortened

Steps: TypeAlias = tuple[str | int, ...]

MAX_NESTING = 64
"""How deep schemas may be inside each other."""
_DEEPEST = 400
"""How deep checks may call each other; a frame or two of Python's thousand each."""
_DIALECT = "https://json-schema.org/draft/2020-12/schema"

SAID: dict[str, type | tuple[type, ...]] = {
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
"""Keywords that ask nothing of a value, and what they must be themselves."""
_AT_THE_TOP = ("$schema", "$id", "$defs")


class Unusable(Exception):
    """A schema that cannot be used: where in it, and why."""

    def __init__(self, steps: Steps, reason: str) -> None:
        super().__init__(reason)
        self.place = "/".join(["#", *(shortened(str(step)) for step in steps)])
        self.reason = reason


def compile_schema(schema: Any) -> Check:
    """The check that a schema stands for, or Unusable."""
    return _Compiler(schema).check


class _Compiler:
    """Compiles one document. Definitions may refer to each other before they are compiled."""

    def __init__(self, root: Any) -> None:
        if not isinstance(root, dict):
            raise Unusable((), "it must be an object")
        self._definitions: dict[str, Check] = {}
        self._names = self._read_the_top(root)
        self._refers: dict[str, list[tuple[str, Steps]]] = {}
        """What each definition refers to about the same value: a circle of these would never end."""
        for name, definition in self._names.items():
            self._definitions[f"#/$defs/{name}"] = self._make(definition, ("$defs", name), f"#/$defs/{name}", 1)
        self.check = self._definitions["#"] = self._make(root, (), "#", 0)
        lengths: dict[str, int] = {}
        for name in self._refers:
            self._follow(name, (), (), lengths)

    @staticmethod
    def _read_the_top(root: dict[str, Any]) -> dict[str, Any]:
        if root.get("$schema", _DIALECT) not in (_DIALECT, f"{_DIALECT}#"):
            raise Unusable(("$schema",), f"it must be {_DIALECT}")
        if not isinstance(root.get("$id", ""), str):
            raise Unusable(("$id",), "it must be a text")
        names: Any = root.get("$defs", {})
        if not isinstance(names, dict):
            raise Unusable(("$defs",), "it must be an object of schemas")
        return names

    def _make(self, schema: Any, steps: Steps, home: str | None, depth: int) -> Check:
        """``home``: the definition whose own value this is about, if it is about that."""
        if schema is True or schema == {}:
            return anything
        if schema is False:
            return _nothing
        if not isinstance(schema, dict):
            raise Unusable(steps, "a schema must be an object, true or false")
        if depth > MAX_NESTING:
            raise Unusable(steps, f"it is nested more than {MAX_NESTING} deep")
        for keyword, wanted in schema.items():
            if keyword not in KEYWORDS and keyword != "$ref" and not (keyword in _AT_THE_TOP and not steps):
                _check_saying(keyword, wanted, steps)
        checks = [self._refer(schema["$ref"], (*steps, "$ref"), home)] if "$ref" in schema else []
        checks += [self._build(keyword, schema, steps, home, depth) for keyword in KEYWORDS if keyword in schema]
        return _together([check for check in checks if check is not anything])

    def _build(self, keyword: str, schema: dict[str, Any], steps: Steps, home: str | None, depth: int) -> Check:
        def make(inner: Any, *further: str | int, same: bool = False) -> Check:
            return self._make(inner, (*steps, keyword, *further), home if same else None, depth + 1)

        try:
            return KEYWORDS[keyword](schema[keyword], schema, make)
        except Wrong as problem:
            raise Unusable((*steps, keyword), str(problem)) from None

    def _refer(self, target: Any, steps: Steps, home: str | None) -> Check:
        if not isinstance(target, str):
            raise Unusable(steps, "it must be a text")
        name = _plain_reference(target)
        if name != "#" and name.removeprefix("#/$defs/") not in self._names:
            raise Unusable(steps, f"{shortened(target)} is not there; only # and #/$defs/… can be referred to")
        if home is not None:
            self._refers.setdefault(home, []).append((name, steps))
        definitions = self._definitions

        def check(value: Any, work: Work, depth: int) -> Problem | None:
            if depth > _DEEPEST:
                raise TooMuch("is nested too deep for its schema")
            work.spend(1)
            return definitions[name](value, work, depth + 1)

        return check

    def _follow(self, name: str, path: tuple[str, ...], steps: Steps, lengths: dict[str, int]) -> int:
        """How many references follow each other from here; ``lengths`` holds what was found so far."""
        if name in path:
            raise Unusable(steps, "it refers to itself without end")
        if name not in lengths:
            found = [self._follow(next, (*path, name), where, lengths) for next, where in self._refers.get(name, ())]
            lengths[name] = 1 + max(found, default=0)
        if len(path) + lengths[name] > MAX_NESTING:
            raise Unusable(steps, f"more than {MAX_NESTING} references follow each other")
        return lengths[name]


def _check_saying(keyword: str, wanted: Any, steps: Steps) -> None:
    if keyword in _AT_THE_TOP:
        raise Unusable((*steps, keyword), "it may only be at the top")
    kind = object if keyword.startswith("x-") else SAID.get(keyword)
    if kind is None:
        near = get_close_matches(keyword, [*KEYWORDS, *SAID, "$ref", "$defs"], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise Unusable(steps, f"the keyword {shortened(keyword)!r} is not known{hint}")
    if not isinstance(wanted, kind):
        raise Unusable((*steps, keyword), "it is not what this keyword takes")


def _plain_reference(target: str) -> str:
    """A reference without its escapes."""
    if "%" in target:
        from urllib.parse import unquote

        target = unquote(target)
    if target.startswith("#/$defs/"):
        name = target.removeprefix("#/$defs/")
        # A slash that is not escaped leads to somewhere inside a definition.
        return "" if "/" in name else f"#/$defs/{name.replace('~1', '/').replace('~0', '~')}"
    return target


def _together(checks: list[Check]) -> Check:
    if not checks:
        return anything
    if len(checks) == 1:
        return checks[0]

    def check(value: Any, work: Work, depth: int) -> Problem | None:
        for one in checks:
            problem = one(value, work, depth)
            if problem is not None:
                return problem
        return None

    return check


def _nothing(value: Any, work: Work, depth: int) -> Problem | None:
    return Problem("must not be there")
