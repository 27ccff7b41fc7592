"""The base class of all errors: a stable code, the facts, and a fix where there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar


class AgentBusError(Exception):
    """The root of all errors of agentbus.

    ``text``, ``fix_text`` and ``shell_fix_text`` are templates that are filled with the facts. A class states
    ``shell_fix_text`` where the fix for a command differs from the fix for a caller of the API.
    """

    code: ClassVar[str] = "error"
    text: ClassVar[str] = "{reason}"
    fix_text: ClassVar[str | None] = None
    shell_fix_text: ClassVar[str | None] = None
    transient: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        # A subclass with a fix of its own does not inherit the words for the shell.
        if "fix_text" in cls.__dict__ and "shell_fix_text" not in cls.__dict__:
            cls.shell_fix_text = None

    def __init__(self, **facts: Any) -> None:
        self.facts = facts
        super().__init__(_filled(self.text, _Facts(facts)))

    @property
    def fix(self) -> str | None:
        """The remedy in terms of the API, or None.

        >>> AgentExists(agent="a", status="running", pid=41).fix
        'end it first, choose another id, or pass takeover=True'
        """
        return self._fix(self.fix_text)

    @property
    def shell_fix(self) -> str | None:
        """The remedy in terms of the command line, or None.

        >>> AgentExists(agent="a", status="running", pid=41).shell_fix
        'end it first (agentbus stop --agent a), choose another id, or pass --takeover'
        """
        return self._fix(self.shell_fix_text) or self.fix

    def _fix(self, template: str | None) -> str | None:
        try:
            return None if template is None else _filled(template, self.facts)
        except KeyError:
            # A fix with a missing fact is left out.
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


def shortened(text: str) -> str:
    """Return the start of a text that is longer than any name.

    >>> shortened("a" * 1000)[-22:]
    'aaa… (1000 characters)'
    """
    return text if len(text) <= _MAX_NAME else f"{text[:_SHOWN]}… ({len(text)} characters)"


_MAX_NAME = 256
"""Characters of the longest name, the key of a state entry."""
_SHOWN = 60


class _LongText(str):
    """A text that is quoted in part: names are quoted, reasons are not."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(shortened(str(self)))


def _filled(template: str, facts: dict[str, Any]) -> str:
    """Fill a template with facts. A foreign object that cannot be shown does not hide the rest of the message."""
    long = {name: _LongText(value) for name, value in facts.items() if type(value) is str and len(value) > _MAX_NAME}
    if long:
        facts = type(facts)({**facts, **long})
    try:
        return template.format_map(facts)
    except BaseException:
        # With facts that can always be shown, only KeyError is left: a missing fact.
        return template.format_map(type(facts)({name: _Fact(value) for name, value in facts.items()}))


class _Fact:
    """A fact that can be shown even if its own methods raise."""

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
