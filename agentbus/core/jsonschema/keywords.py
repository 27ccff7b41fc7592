"""Compile each keyword of a schema into a check. A check accepts every value of a kind that its keyword ignores."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sized
from typing import Any, Protocol, TypeAlias

from agentbus.core.codec import plain
from agentbus.core.jsonschema.linear_regex import Budget, Pattern

_identifier = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*").fullmatch
_MAX_TEXT = 60
_MAX_KEYS = 16

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


class Violation:
    """The reason why a value does not match, and its path: keys and indexes are added from the inside out."""

    __slots__ = ("keys", "reason")

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.keys: list[str | int] = []

    def inside(self, key: str | int) -> Violation:
        self.keys.append(key)
        return self

    @property
    def path(self) -> str:
        """Return the JSON path of the value.

        >>> Violation("…").inside(3).inside("files").inside("$odd").path
        '$["$odd"].files[3]'
        """
        keys = self.keys[::-1]
        shown = "".join(_step(key) for key in keys[:_MAX_KEYS])
        return f"${shown}{'…' if len(keys) > _MAX_KEYS else ''}"


Check: TypeAlias = Callable[[Any, Budget, int], Violation | None]
"""A function of the value, the remaining budget and the depth of the call."""


class Location(Protocol):
    """The subschema that a keyword belongs to, as the compiler presents it."""

    schema: dict[str, Any]

    def compile(self, schema: Any, *steps: str | int, same: bool = False) -> Check:
        """Compile a schema at these steps below this one; ``same``: it applies to the same value."""

    def pattern(self, text: Any, *steps: str) -> Pattern:
        """Compile a regular expression."""

    def evaluated(self, value: Any, budget: Budget, depth: int) -> set[str | int]:
        """Return the keys or indexes of the value that the other keywords of this subschema have evaluated."""


Keyword: TypeAlias = Callable[[Any, Location], Check]


class InvalidKeyword(ValueError):
    """The argument of a keyword is invalid."""


def truncate(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


def accept(value: Any, budget: Budget, depth: int) -> Violation | None:
    """Accept every value."""
    return None


def reject(value: Any, budget: Budget, depth: int) -> Violation | None:
    """Reject every value."""
    return Violation("is not allowed")


def _step(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    short = truncate(key)
    return f".{short}" if _identifier(short) else f'["{short}"]'


# Any value


def _type(argument: Any, location: Location) -> Check:
    names = [argument] if isinstance(argument, str) else argument
    if not isinstance(names, list) or not names or any(not isinstance(name, str) for name in names):
        raise InvalidKeyword("it must be the name of a type, or a list of names")
    unknown = [name for name in names if name not in TYPES]
    if unknown or len(set(names)) < len(names):
        raise InvalidKeyword(f"there is no type {truncate(unknown[0])!r}" if unknown else "duplicate type")
    classes = frozenset(kind for name in names for kind in TYPES[name][1])
    whole = "integer" in names and float not in classes
    text = " or ".join(TYPES[name][0] for name in names)

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        kind = value.__class__
        if kind in classes or (whole and kind is float and value.is_integer()):
            return None
        return Violation(f"must be {text}, is {NAMES[kind]}")

    return check


def _enum(argument: Any, location: Location) -> Check:
    if not isinstance(argument, list) or not argument:
        raise InvalidKeyword("it must be a list of values")
    return _equal_to(argument, f"must be one of {', '.join(plain(value) for value in argument)}")


def _const(argument: Any, location: Location) -> Check:
    return _equal_to([argument], f"must be {plain(argument)}")


def _equal_to(values: list[Any], reason: str) -> Check:
    unlimited = Budget(2**62)
    allowed = {_hashable(value, unlimited) for value in values}
    scalars = not any(isinstance(value, dict | list) for value in values)
    if len(reason) > 200:
        reason = f"{reason[:200]}…"

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        if scalars and value.__class__ in {dict, list}:
            return Violation(reason)
        return None if _hashable(value, budget) in allowed else Violation(reason)

    return check


def _hashable(value: Any, budget: Budget) -> Any:
    """Return an object that is equal for values that JSON Schema holds equal: 1 and 1.0, but not 1 and true."""
    kind = value.__class__
    if kind is bool:
        return (bool, value)
    if kind is list:
        budget.spend(len(value))
        return (list, *(_hashable(item, budget) for item in value))
    if kind is dict:
        budget.spend(len(value))
        return (dict, frozenset((key, _hashable(item, budget)) for key, item in value.items()))
    return value


# Combinations of schemas


def _alternatives(keyword: str, argument: Any, location: Location) -> list[Check]:
    if not isinstance(argument, list) or not argument:
        raise InvalidKeyword("it must be a list of schemas")
    return [location.compile(inner, keyword, index, same=True) for index, inner in enumerate(argument)]


def _any_of(argument: Any, location: Location) -> Check:
    alternatives = _alternatives("anyOf", argument, location)

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        budget.spend(len(alternatives))
        violations: list[Violation] = []
        for alternative in alternatives:
            violation = alternative(value, budget, depth + 1)
            if violation is None:
                return None
            violations.append(violation)
        return _deepest(violations)

    return check


def _deepest(violations: list[Violation]) -> Violation:
    """Return the violation with the longest path: its alternative was probably meant."""
    longest = max(len(violation.keys) for violation in violations)
    near = [violation for violation in violations if len(violation.keys) == longest]
    if len(near) == 1:
        return near[0]
    reasons = "; ".join(dict.fromkeys(violation.reason for violation in violations))
    return Violation(f"matches none of {len(violations)} alternatives: {reasons[:300]}")


def _one_of(argument: Any, location: Location) -> Check:
    alternatives = _alternatives("oneOf", argument, location)

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        budget.spend(len(alternatives))
        violations = [found for one in alternatives if (found := one(value, budget, depth + 1)) is not None]
        matches = len(alternatives) - len(violations)
        if matches == 1:
            return None
        return Violation(f"matches {matches} alternatives, must match one") if matches else _deepest(violations)

    return check


def _all_of(argument: Any, location: Location) -> Check:
    parts = _alternatives("allOf", argument, location)

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        budget.spend(len(parts))
        for part in parts:
            violation = part(value, budget, depth + 1)
            if violation is not None:
                return violation
        return None

    return check


def _not(argument: Any, location: Location) -> Check:
    forbidden = location.compile(argument, "not", same=True)

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        budget.spend(1)
        return Violation("must not match this schema") if forbidden(value, budget, depth + 1) is None else None

    return check


def _if(argument: Any, location: Location) -> Check:
    condition = location.compile(argument, "if", same=True)
    then, otherwise = (
        location.compile(location.schema[name], name, same=True) if name in location.schema else accept
        for name in ("then", "else")
    )

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        budget.spend(1)
        branch = then if condition(value, budget, depth + 1) is None else otherwise
        return branch(value, budget, depth + 1)

    return check


def _branch(name: str) -> Keyword:
    def keyword(argument: Any, location: Location) -> Check:
        # Without "if" it applies to nothing, and must still be a valid schema.
        if "if" not in location.schema:
            location.compile(argument, name, same=True)
        return accept

    return keyword


# Objects


def _properties(argument: Any, location: Location) -> Check:
    compiled = {name: location.compile(inner, "properties", name) for name, inner in _named(argument).items()}
    known = {name: inner for name, inner in compiled.items() if inner is not accept}

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        if value.__class__ is not dict:
            return None
        budget.spend(len(known))
        for name, inner in known.items():
            if name in value:
                violation = inner(value[name], budget, depth + 1)
                if violation is not None:
                    return violation.inside(name)
        return None

    return check


def _named(argument: Any) -> dict[str, Any]:
    if not isinstance(argument, dict):
        raise InvalidKeyword("it must be an object of schemas")
    return argument


def _pattern_properties(argument: Any, location: Location) -> Check:
    known = [
        (location.pattern(text, "patternProperties", text), location.compile(inner, "patternProperties", text))
        for text, inner in _named(argument).items()
    ]

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        if value.__class__ is not dict:
            return None
        for name, item in value.items():
            for pattern, inner in known:
                if pattern.search(name, budget):
                    violation = inner(item, budget, depth + 1)
                    if violation is not None:
                        return violation.inside(name)
        return None

    return check


def _additional_properties(argument: Any, location: Location) -> Check:
    inner = location.compile(argument, "additionalProperties")
    declared = frozenset(_named(location.schema.get("properties", {})))
    texts = _named(location.schema.get("patternProperties", {}))
    patterns = [location.pattern(text, "patternProperties", text) for text in texts]

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        if value.__class__ is not dict:
            return None
        budget.spend(len(value))
        for name, item in value.items():
            if name in declared or any(pattern.search(name, budget) for pattern in patterns):
                continue
            violation = inner(item, budget, depth + 1)
            if violation is not None:
                return Violation(f"must not have {truncate(name)!r}") if inner is reject else violation.inside(name)
        return None

    return check


def _property_names(argument: Any, location: Location) -> Check:
    inner = location.compile(argument, "propertyNames")

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        if value.__class__ is not dict:
            return None
        budget.spend(len(value))
        for name in value:
            violation = inner(name, budget, depth + 1)
            if violation is not None:
                return Violation(f"has a key that {violation.reason}")
        return None

    return check


def _required(argument: Any, location: Location) -> Check:
    names = _unique_names(argument)

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        if value.__class__ is dict:
            budget.spend(len(names))
            for name in names:
                if name not in value:
                    return Violation(f"must have {truncate(name)!r}")
        return None

    return check


def _unique_names(argument: Any) -> list[str]:
    if not isinstance(argument, list) or any(not isinstance(name, str) for name in argument):
        raise InvalidKeyword("it must be a list of names")
    if len(set(argument)) < len(argument):
        raise InvalidKeyword("duplicate name")
    return argument


def _dependent_required(argument: Any, location: Location) -> Check:
    if not isinstance(argument, dict):
        raise InvalidKeyword("it must be an object of lists of names")
    dependent = {name: _unique_names(names) for name, names in argument.items()}

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        if value.__class__ is not dict:
            return None
        budget.spend(len(dependent))
        for trigger, names in dependent.items():
            if trigger in value:
                budget.spend(len(names))
                for name in names:
                    if name not in value:
                        return Violation(f"must have {truncate(name)!r}, because it has {truncate(trigger)!r}")
        return None

    return check


def _dependent_schemas(argument: Any, location: Location) -> Check:
    dependent = {
        name: location.compile(inner, "dependentSchemas", name, same=True) for name, inner in _named(argument).items()
    }

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        if value.__class__ is not dict:
            return None
        budget.spend(len(dependent))
        for name, inner in dependent.items():
            if name in value:
                violation = inner(value, budget, depth + 1)
                if violation is not None:
                    return violation
        return None

    return check


# Arrays


def _items(argument: Any, location: Location) -> Check:
    inner = location.compile(argument, "items")
    prefix = location.schema.get("prefixItems")
    start = len(prefix) if isinstance(prefix, list) else 0

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        if value.__class__ is not list or len(value) <= start:
            return None
        if inner is reject:
            return Violation(f"must have at most {start} items, has {len(value)}")
        budget.spend(len(value))
        for index, item in enumerate(value[start:] if start else value, start):
            violation = inner(item, budget, depth + 1)
            if violation is not None:
                return violation.inside(index)
        return None

    return check


def _prefix_items(argument: Any, location: Location) -> Check:
    if not isinstance(argument, list) or not argument:
        raise InvalidKeyword("it must be a list of schemas")
    prefix = [location.compile(inner, "prefixItems", index) for index, inner in enumerate(argument)]

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        if value.__class__ is not list:
            return None
        budget.spend(len(prefix))
        for index, (inner, item) in enumerate(zip(prefix, value, strict=False)):
            violation = inner(item, budget, depth + 1)
            if violation is not None:
                return violation.inside(index)
        return None

    return check


def _unique_items(argument: Any, location: Location) -> Check:
    if not isinstance(argument, bool):
        raise InvalidKeyword("it must be true or false")
    if not argument:
        return accept

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        if value.__class__ is list and len({_hashable(item, budget) for item in value}) < len(value):
            return Violation("must have no duplicate items")
        return None

    return check


def _contains(argument: Any, location: Location) -> Check:
    inner = location.compile(argument, "contains")
    low = location.schema.get("minContains", 1)
    high = location.schema.get("maxContains")

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        if value.__class__ is not list:
            return None
        budget.spend(len(value))
        matches = sum(inner(item, budget, depth + 1) is None for item in value)
        if matches < low:
            return Violation(f"must contain at least {int(low)} matching items, has {matches}")
        if high is not None and matches > high:
            return Violation(f"must contain at most {int(high)} matching items, has {matches}")
        return None

    return check


def _contains_bound(argument: Any, location: Location) -> Check:
    # "contains" reads it; without that it applies to nothing.
    _check_size(argument)
    return accept


# Keys and items that no other keyword evaluates


def _unevaluated(keyword: str, kind: type[Any]) -> Keyword:
    def compile(argument: Any, location: Location) -> Check:
        inner = location.compile(argument, keyword)

        def check(value: Any, budget: Budget, depth: int) -> Violation | None:
            if value.__class__ is not kind:
                return None
            evaluated = location.evaluated(value, budget, depth + 1)
            budget.spend(len(value))
            items: Iterable[tuple[str | int, Any]] = value.items() if kind is dict else enumerate(value)
            for key, item in items:
                if key not in evaluated:
                    violation = inner(item, budget, depth + 1)
                    if violation is not None:
                        return violation.inside(key)
            return None

        return check

    return compile


# Numbers and strings


def _pattern(argument: Any, location: Location) -> Check:
    pattern = location.pattern(argument, "pattern")
    reason = f"must match {truncate(argument)}"

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        return Violation(reason) if value.__class__ is str and not pattern.search(value, budget) else None

    return check


def _multiple_of(argument: Any, location: Location) -> Check:
    if argument.__class__ not in {int, float} or argument <= 0:
        raise InvalidKeyword("it must be a number above 0")
    # Imported here to keep the command line fast.
    from fractions import Fraction

    unit = Fraction(repr(argument))

    def check(value: Any, budget: Budget, depth: int) -> Violation | None:
        kind = value.__class__
        if kind is int and argument.__class__ is int:
            divisible = value % argument == 0
        elif kind is int or kind is float:
            budget.spend(20)
            divisible = (Fraction(repr(value)) / unit).denominator == 1
        else:
            return None
        return None if divisible else Violation(f"must be a multiple of {argument}")

    return check


def _bound(text: str, violates: Callable[[Any, Any], bool]) -> Keyword:
    def keyword(argument: Any, location: Location) -> Check:
        if argument.__class__ not in {int, float}:
            raise InvalidKeyword("it must be a number")
        reason = f"must be {text} {argument}"

        def check(value: Any, budget: Budget, depth: int) -> Violation | None:
            kind = value.__class__
            return Violation(reason) if (kind is int or kind is float) and violates(value, argument) else None

        return check

    return keyword


def _check_size(argument: Any) -> None:
    if argument.__class__ not in {int, float} or argument < 0 or argument != int(argument):
        raise InvalidKeyword("it must be a non-negative integer")


def _size(kind: type[Sized], maximum: bool, unit: str) -> Keyword:
    def keyword(argument: Any, location: Location) -> Check:
        _check_size(argument)
        reason = f"must have at {'most' if maximum else 'least'} {int(argument)} {unit}"

        def check(value: Any, budget: Budget, depth: int) -> Violation | None:
            if value.__class__ is not kind or (len(value) <= argument if maximum else len(value) >= argument):
                return None
            return Violation(f"{reason}, has {len(value)}")

        return check

    return keyword


KEYWORDS: dict[str, Keyword] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "minProperties": _size(dict, False, "keys"),
    "maxProperties": _size(dict, True, "keys"),
    "required": _required,
    "dependentRequired": _dependent_required,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "propertyNames": _property_names,
    "minItems": _size(list, False, "items"),
    "maxItems": _size(list, True, "items"),
    "prefixItems": _prefix_items,
    "items": _items,
    "uniqueItems": _unique_items,
    "minContains": _contains_bound,
    "maxContains": _contains_bound,
    "contains": _contains,
    "minimum": _bound("at least", lambda value, bound: value < bound),
    "maximum": _bound("at most", lambda value, bound: value > bound),
    "exclusiveMinimum": _bound("above", lambda value, bound: value <= bound),
    "exclusiveMaximum": _bound("below", lambda value, bound: value >= bound),
    "multipleOf": _multiple_of,
    "minLength": _size(str, False, "characters"),
    "maxLength": _size(str, True, "characters"),
    "pattern": _pattern,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "then": _branch("then"),
    "else": _branch("else"),
    "dependentSchemas": _dependent_schemas,
    "unevaluatedProperties": _unevaluated("unevaluatedProperties", dict),
    "unevaluatedItems": _unevaluated("unevaluatedItems", list),
}
"""In the order in which a value is checked: cheap and informative keywords first, "unevaluated" ones last."""
