"""What each keyword of a schema asks of a value. A check is silent about values of other kinds than its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sized
from typing import Any, TypeAlias

from agentbus.codec import plain
from agentbus.schema.patterns import Pattern, Unsupported
from agentbus.schema.work import Check, Problem, Work, anything, shortened

Make: TypeAlias = Callable[..., Check]
"""Compiles a schema inside this one: ``make(schema, *steps, same=…)``; ``same``: it is about the same value."""
Keyword: TypeAlias = Callable[[Any, dict[str, Any], Make], Check]

NAMES: dict[type, str] = {
    dict: "an object", list: "an array", str: "a string", int: "an integer", float: "a number", bool: "a boolean",
    type(None): "null",
}  # fmt: skip
TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "object": ("an object", (dict,)),
    "array": ("an array", (list,)),
    "string": ("a string", (str,)),
    "integer": ("an integer", (int,)),
    "number": ("a number", (int, float)),
    "boolean": ("a boolean", (bool,)),
    "null": ("null", (type(None),)),
}


class Wrong(ValueError):
    """The value of a keyword is not what it must be."""


# Of any value


def _type(wanted: Any, schema: dict[str, Any], make: Make) -> Check:
    names = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(names, list) or not names or any(not isinstance(name, str) for name in names):
        raise Wrong("it must be the name of a type, or a list of them")
    unknown = [name for name in names if name not in TYPES]
    if unknown or len(set(names)) < len(names):
        raise Wrong(f"there is no type {shortened(unknown[0])!r}" if unknown else "a type is named twice")
    classes = frozenset(kind for name in names for kind in TYPES[name][1])
    whole = "integer" in names and float not in classes
    text = " or ".join(TYPES[name][0] for name in names)

    def check(value: Any, work: Work, depth: int) -> Problem | None:
        kind = value.__class__
        if kind in classes or (whole and kind is float and value.is_integer()):
            return None
        return Problem(f"must be {text}, is {NAMES[kind]}")

    return check


def _enum(wanted: Any, schema: dict[str, Any], make: Make) -> Check:
    if not isinstance(wanted, list) or not wanted:
        raise Wrong("it must be a list of values")
    return _one_of(wanted, f"must be one of {', '.join(plain(value) for value in wanted)}")


def _const(wanted: Any, schema: dict[str, Any], make: Make) -> Check:
    return _one_of([wanted], f"must be {plain(wanted)}")


def _one_of(wanted: list[Any], reason: str) -> Check:
    free = Work(2**62)
    allowed = {_frozen(value, free) for value in wanted}
    simple = not any(isinstance(value, dict | list) for value in wanted)
    if len(reason) > 200:
        reason = f"{reason[:200]}…"

    def check(value: Any, work: Work, depth: int) -> Problem | None:
        if simple and value.__class__ in {dict, list}:
            return Problem(reason)
        return None if _frozen(value, work) in allowed else Problem(reason)

    return check


def _frozen(value: Any, work: Work) -> Any:
    """The same hashable thing for what JSON Schema holds equal: 1 and 1.0, but not 1 and true."""
    kind = value.__class__
    if kind is bool:
        return (bool, value)
    if kind is list:
        work.spend(len(value))
        return (list, *(_frozen(item, work) for item in value))
    if kind is dict:
        work.spend(len(value))
        return (dict, frozenset((key, _frozen(item, work)) for key, item in value.items()))
    return value


def _options(wanted: Any, make: Make) -> list[Check]:
    if not isinstance(wanted, list) or not wanted:
        raise Wrong("it must be a list of schemas")
    return [make(option, index, same=True) for index, option in enumerate(wanted)]


def _any_of(wanted: Any, schema: dict[str, Any], make: Make) -> Check:
    options = _options(wanted, make)

    def check(value: Any, work: Work, depth: int) -> Problem | None:
        work.spend(len(options))
        problems: list[Problem] = []
        for option in options:
            problem = option(value, work, depth + 1)
            if problem is None:
                return None
            problems.append(problem)
        return _nearest(problems)

    return check


def _nearest(problems: list[Problem]) -> Problem:
    """Of what is wrong with each alternative, what came furthest: that one was probably meant."""
    furthest = max(len(problem.keys) for problem in problems)
    near = [problem for problem in problems if len(problem.keys) == furthest]
    if len(near) == 1:
        return near[0]
    reasons = "; ".join(dict.fromkeys(problem.reason for problem in problems))
    return Problem(f"fits none of {len(problems)} alternatives: {reasons[:300]}")


def _exactly_one_of(wanted: Any, schema: dict[str, Any], make: Make) -> Check:
    options = _options(wanted, make)

    def check(value: Any, work: Work, depth: int) -> Problem | None:
        work.spend(len(options))
        problems = [problem for option in options if (problem := option(value, work, depth + 1)) is not None]
        fitting = len(options) - len(problems)
        if fitting == 1:
            return None
        return Problem(f"fits {fitting} of the alternatives, must fit one") if fitting else _nearest(problems)

    return check


def _all_of(wanted: Any, schema: dict[str, Any], make: Make) -> Check:
    options = _options(wanted, make)

    def check(value: Any, work: Work, depth: int) -> Problem | None:
        work.spend(len(options))
        for option in options:
            problem = option(value, work, depth + 1)
            if problem is not None:
                return problem
        return None

    return check


def _not(wanted: Any, schema: dict[str, Any], make: Make) -> Check:
    forbidden = make(wanted, same=True)

    def check(value: Any, work: Work, depth: int) -> Problem | None:
        work.spend(1)
        return Problem("is what it must not be") if forbidden(value, work, depth + 1) is None else None

    return check


# Of objects


def _properties(wanted: Any, schema: dict[str, Any], make: Make) -> Check:
    if not isinstance(wanted, dict):
        raise Wrong("it must be an object of schemas")
    every = {name: make(inner, name) for name, inner in wanted.items()}
    known = {name: inner for name, inner in every.items() if inner is not anything}

    def check(value: Any, work: Work, depth: int) -> Problem | None:
        if value.__class__ is not dict:
            return None
        work.spend(len(known))
        for name, inner in known.items():
            if name in value:
                problem = inner(value[name], work, depth + 1)
                if problem is not None:
                    return problem.under(name)
        return None

    return check


def _required(wanted: Any, schema: dict[str, Any], make: Make) -> Check:
    if not isinstance(wanted, list) or any(not isinstance(name, str) for name in wanted):
        raise Wrong("it must be a list of names")
    if len(set(wanted)) < len(wanted):
        raise Wrong("a name is there twice")

    def check(value: Any, work: Work, depth: int) -> Problem | None:
        if value.__class__ is dict:
            work.spend(len(wanted))
            for name in wanted:
                if name not in value:
                    return Problem(f"must have {shortened(name)!r}")
        return None

    return check


def _additional_properties(wanted: Any, schema: dict[str, Any], make: Make) -> Check:
    inner = make(wanted)
    declared = schema.get("properties")
    known: Collection[str] = frozenset(declared) if isinstance(declared, dict) else ()

    def check(value: Any, work: Work, depth: int) -> Problem | None:
        if value.__class__ is not dict:
            return None
        work.spend(len(value))
        for name, item in value.items():
            if name not in known:
                if wanted is False:
                    return Problem(f"must not have {shortened(name)!r}")
                problem = inner(item, work, depth + 1)
                if problem is not None:
                    return problem.under(name)
        return None

    return check


def _property_names(wanted: Any, schema: dict[str, Any], make: Make) -> Check:
    inner = make(wanted)

    def check(value: Any, work: Work, depth: int) -> Problem | None:
        if value.__class__ is not dict:
            return None
        work.spend(len(value))
        for name in value:
            problem = inner(name, work, depth + 1)
            if problem is not None:
                return Problem(f"has a key that {problem.reason}")
        return None

    return check


# Of arrays


def _items(wanted: Any, schema: dict[str, Any], make: Make) -> Check:
    inner = make(wanted)
    first = schema.get("prefixItems")
    begin = len(first) if isinstance(first, list) else 0

    def check(value: Any, work: Work, depth: int) -> Problem | None:
        if value.__class__ is not list or len(value) <= begin:
            return None
        if wanted is False:
            return Problem(f"must have at most {begin} items, has {len(value)}")
        work.spend(len(value))
        for index, item in enumerate(value[begin:] if begin else value, begin):
            problem = inner(item, work, depth + 1)
            if problem is not None:
                return problem.under(index)
        return None

    return check


def _prefix_items(wanted: Any, schema: dict[str, Any], make: Make) -> Check:
    if not isinstance(wanted, list) or not wanted:
        raise Wrong("it must be a list of schemas")
    first = [make(inner, index) for index, inner in enumerate(wanted)]

    def check(value: Any, work: Work, depth: int) -> Problem | None:
        if value.__class__ is not list:
            return None
        work.spend(len(first))
        for index, (inner, item) in enumerate(zip(first, value, strict=False)):
            problem = inner(item, work, depth + 1)
            if problem is not None:
                return problem.under(index)
        return None

    return check


def _unique_items(wanted: Any, schema: dict[str, Any], make: Make) -> Check:
    if not isinstance(wanted, bool):
        raise Wrong("it must be true or false")
    if not wanted:
        return anything

    def check(value: Any, work: Work, depth: int) -> Problem | None:
        if value.__class__ is list and len({_frozen(item, work) for item in value}) < len(value):
            return Problem("has an item twice")
        return None

    return check


# Of numbers and texts


def _pattern(wanted: Any, schema: dict[str, Any], make: Make) -> Check:
    if not isinstance(wanted, str):
        raise Wrong("it must be a regular expression")
    try:
        pattern = Pattern(wanted)
    except Unsupported as error:
        raise Wrong(str(error)) from None
    reason = f"must match {shortened(wanted)}"

    def check(value: Any, work: Work, depth: int) -> Problem | None:
        return Problem(reason) if value.__class__ is str and not pattern.search(value, work) else None

    return check


def _multiple_of(wanted: Any, schema: dict[str, Any], make: Make) -> Check:
    if wanted.__class__ not in {int, float} or wanted <= 0:
        raise Wrong("it must be a number above 0")
    # Imported only here: the command line should start without it.
    from fractions import Fraction

    unit = Fraction(repr(wanted))

    def check(value: Any, work: Work, depth: int) -> Problem | None:
        kind = value.__class__
        if kind is int and wanted.__class__ is int:
            fits = value % wanted == 0
        elif kind is int or kind is float:
            work.spend(20)
            fits = (Fraction(repr(value)) / unit).denominator == 1
        else:
            return None
        return None if fits else Problem(f"must be a multiple of {wanted}")

    return check


def _bound(text: str, beyond: Callable[[Any, Any], bool]) -> Keyword:
    def keyword(wanted: Any, schema: dict[str, Any], make: Make) -> Check:
        if wanted.__class__ not in {int, float}:
            raise Wrong("it must be a number")
        reason = f"must be {text} {wanted}"

        def check(value: Any, work: Work, depth: int) -> Problem | None:
            kind = value.__class__
            return Problem(reason) if (kind is int or kind is float) and beyond(value, wanted) else None

        return check

    return keyword


def _size(kind: type[Sized], most: bool, unit: str) -> Keyword:
    def keyword(wanted: Any, schema: dict[str, Any], make: Make) -> Check:
        if wanted.__class__ not in {int, float} or wanted < 0 or wanted != int(wanted):
            raise Wrong("it must be a whole number from 0")
        reason = f"must have at {'most' if most else 'least'} {int(wanted)} {unit}"

        def check(value: Any, work: Work, depth: int) -> Problem | None:
            if value.__class__ is not kind or (len(value) <= wanted if most else len(value) >= wanted):
                return None
            return Problem(f"{reason}, has {len(value)}")

        return check

    return keyword


KEYWORDS: dict[str, Keyword] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "minProperties": _size(dict, False, "keys"),
    "maxProperties": _size(dict, True, "keys"),
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional_properties,
    "propertyNames": _property_names,
    "minItems": _size(list, False, "items"),
    "maxItems": _size(list, True, "items"),
    "prefixItems": _prefix_items,
    "items": _items,
    "uniqueItems": _unique_items,
    "minimum": _bound("at least", lambda value, wanted: value < wanted),
    "maximum": _bound("at most", lambda value, wanted: value > wanted),
    "exclusiveMinimum": _bound("above", lambda value, wanted: value <= wanted),
    "exclusiveMaximum": _bound("below", lambda value, wanted: value >= wanted),
    "multipleOf": _multiple_of,
    "minLength": _size(str, False, "characters"),
    "maxLength": _size(str, True, "characters"),
    "pattern": _pattern,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _exactly_one_of,
    "not": _not,
}
"""In the order in which a value is checked: what is cheap and says most comes first."""
