"""What all errors of agentbus have in common: a code, facts, and where there is one a fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar


class AgentBusError(Exception):
    """The root of all errors of agentbus.

    ``text`` and ``fix`` are templates that the facts are put into.
    """

    code: ClassVar[str] = "error"
    text: ClassVar[str] = "{reason}"
    fix_text: ClassVar[str | None] = None
    transient: ClassVar[bool] = False

    def __init__(self, **facts: Any) -> None:
        self.facts = facts
        super().__init__(_filled(self.text, _Facts(facts)))

    @property
    def fix(self) -> str | None:
        """What to do about it, where there is something.

        >>> AgentExists(agent="a", status="running", pid=41).fix
        'end it first, choose another id, or pass takeover=True'
        """
        try:
            return None if self.fix_text is None else _filled(self.fix_text, self.facts)
        except KeyError:
            # Advice with a gap in it is none.
            return None

    def __str__(self) -> str:
        message = str(self.args[0])
        return f"{message} ({self.fix})" if self.fix else message

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.facts)


def shown(value: object, show: Callable[[Any], str], what: str = "it") -> str:
    """Return ``str`` or ``repr`` of a foreign object, as a plain str. Where that fails, the result says so.

    BaseException is caught too, as ``traceback`` does: a ``__str__`` that raises SystemExit must not end the process
    in the middle of an error's handling.
    """
    try:
        return "".join((show(value),))
    except BaseException as problem:
        return f"({what} cannot be shown: {type(problem).__name__})"


def _filled(template: str, facts: dict[str, Any]) -> str:
    """Put facts into a template. Foreign ones that cannot be shown do not hide what the error is about."""
    try:
        return template.format_map(facts)
    except BaseException:
        # With facts that are always shown, only a KeyError is left: one that is missing.
        return template.format_map(type(facts)({name: _Fact(value) for name, value in facts.items()}))


class _Fact:
    """A fact that is shown whatever its own methods do."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return shown(self._value, str)

    def __repr__(self) -> str:
        return shown(self._value, repr)

    def __format__(self, specification: str) -> str:
        return shown(self._value, str)


class _Facts(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        if key == "hint":
            near = self.get("near")
            return f"; did you mean {' or '.join(near)}?" if near else ""
        return "?"


def _rebuild(kind: type[AgentBusError], facts: dict[str, Any]) -> AgentBusError:
    return kind(**facts)
